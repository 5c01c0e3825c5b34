"""Replays in which the program drops, cuts, moves or invents what the policy has said."""

import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer

pytestmark = pytest.mark.anyio

ASK = "<|im_start|>assistant\n"
END = "<|im_end|>"


def ids(text):
    return tuple(byte_tokenizer().encode(text, add_special_tokens=False).ids)


def at(text):
    """Return the number of tokens before what follows a text."""
    return len(ids(text))


def said(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def result(text):
    return said("user", f"<tool_response>\n{text}\n</tool_response>")


def use(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def user(*texts):
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def assistant(content):
    return {"role": "assistant", "content": content}


def returned(block, content, *texts):
    """Return the message with the result of a tool_use block, and texts the program adds."""
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": content}
    more = [{"type": "text", "text": text} for text in texts]
    return {"role": "user", "content": [result, *more]}


LOOK = use("Bash", '{"command":  "ls"}')
THINKING = "<think>\nHm.\n</think>\n\n"
NOTHING = "[Your previous response had no visible output. Go on.]"


async def test_thinking_only_answer_dropped(open_replay):
    """The empty turn is gone and the message before it has grown: its sibling was chosen."""
    async with open_replay(LOOK, THINKING, "Two files.", "Bye.") as replay:
        first = await replay.anthropic(user("List."))
        history = [user("List."), assistant(first)]
        empty = await replay.anthropic(*history, returned(first[0], "a b"))
        assert [block["type"] for block in empty] == ["thinking"]
        history.append(returned(first[0], "a b", NOTHING))
        await replay.anthropic(*history)
        await replay.anthropic(*history, assistant("Two files."), user("Thanks."))

        assert replay.graph == {
            "call_0": (),
            "call_1": ("call_0",),
            "call_2": ("call_0",),
            "call_3": ("call_2",),
        }
        start = said("user", "List.") + ASK
        told = start + LOOK + END + "\n" + result("a b")
        grown = told + said("user", NOTHING) + ASK
        last = grown + "Two files." + END + "\n" + said("user", "Thanks.") + ASK
        replay.assert_prompts(call_0=start, call_1=told + ASK, call_2=grown, call_3=last)
        assert replay.reasons == {"call_1": "superseded"}
        assert replay.edges == [
            ("call_0", at(start), LOOK + END),
            ("call_2", at(grown), "Two files." + END),
            ("call_3", at(last), "Bye." + END),
        ]


async def test_thinking_only_answer_dropped_at_the_start(open_replay):
    async with open_replay(THINKING, "Hello.", "Bye.") as replay:
        await replay.anthropic(user("Hi."))
        await replay.anthropic(user("Hi.", NOTHING))
        await replay.anthropic(user("Hi.", NOTHING), assistant("Hello."), user("Bye."))
        assert replay.graph == {
            "call_0": (),
            "call_1": ("user_changed",),
            "call_2": ("call_1",),
        }
        assert replay.calls[1].fork_span.endswith("[Your previous response had no visib'")
        grown = said("user", f"Hi.\n\n{NOTHING}") + ASK
        assert replay.reasons == {"call_0": "superseded"}
        assert replay.edges == [
            ("call_1", at(grown), "Hello." + END),
            (
                "call_2",
                at(grown + "Hello." + END + "\n" + said("user", "Bye.") + ASK),
                "Bye." + END,
            ),
        ]


SHOW = use("Bash", '{"command": "cat a"}')


async def test_reused_tool_id(open_replay):
    """The program names the second call like the first: content decides, and none is lost."""
    async with open_replay(LOOK, SHOW, "Alpha.") as replay:
        first = await replay.anthropic(user("List."))
        history = [user("List."), assistant(first), returned(first[0], "a")]
        second = await replay.anthropic(*history)
        same = second[0] | {"id": first[0]["id"]}
        await replay.anthropic(*history, assistant([same]), returned(same, "alpha"))

        assert first[0]["id"] != second[0]["id"]
        assert replay.graph == {"call_0": (), "call_1": ("call_0",), "call_2": ("call_1",)}
        start = said("user", "List.") + ASK
        then = start + LOOK + END + "\n" + result("a") + ASK
        last = then + SHOW + END + "\n" + result("alpha") + ASK
        replay.assert_prompts(call_0=start, call_1=then, call_2=last)
        assert replay.edges == [
            ("call_0", at(start), LOOK + END),
            ("call_1", at(then), SHOW + END),
            ("call_2", at(last), "Alpha." + END),
        ]


async def test_reused_tool_id_on_another_branch(open_replay):
    """After a new beginning, too, an id that came before names no second message."""
    async with open_replay(LOOK, SHOW, "Alpha.") as replay:
        first = await replay.anthropic(user("List."))
        second = await replay.anthropic(user("List."), assistant(first), returned(first[0], "a"))
        same = second[0] | {"id": first[0]["id"]}
        history = [assistant(first), returned(first[0], "a"), assistant([same])]
        await replay.anthropic(user("Listing."), *history, returned(same, "alpha"))
        anew = said("user", "Listing.") + ASK + LOOK + END + "\n" + result("a") + ASK
        replay.assert_prompts(call_2=anew + SHOW + END + "\n" + result("alpha") + ASK)
        assert [
            replay.calls[2].environment_ids[slice(*span)] for span in replay.calls[2].replayed
        ] == [ids(LOOK + END), ids(SHOW + END)]
        assert replay.graph["call_2"] == ("call_1", "user_changed")
        assert [name for name, _, _ in replay.edges] == ["call_0", "call_1", "call_2"]


async def test_a_message_sent_twice_stands_for_one_call(open_replay):
    """The second copy has the id of the first, and is text that somebody else put there."""
    async with open_replay(LOOK, "Done.") as replay:
        first = await replay.anthropic(user("List."))
        pair = [assistant(first), returned(first[0], "a")]
        await replay.anthropic(user("Listing."), *pair, *pair)
        after = END + "\n" + result("a") + ASK
        copy = LOOK.replace(":  ", ":")  # as the program wrote it anew
        replay.assert_prompts(call_1=said("user", "Listing.") + ASK + LOOK + after + copy + after)
        (span,) = replay.calls[1].replayed
        assert replay.calls[1].environment_ids[slice(*span)] == ids(LOOK + END)
        assert replay.graph["call_1"] == ("call_0", "user_changed")


async def test_ids_cut_and_stripped_by_the_client(open_replay):
    """Two equal calls were sampled; what is left of the id says which one is meant."""
    async with open_replay(LOOK, LOOK, "Done.") as replay:
        first = await replay.anthropic(user("List."))
        await replay.anthropic(user("List."), assistant("Hm."), user("Try."))
        bare = "".join(letter for letter in first[0]["id"] if letter.isalnum())
        block = first[0] | {"id": bare}
        await replay.anthropic(user("List!"), assistant([block]), returned(block, "a"))
        assert replay.graph["call_2"] == ("call_0", "user_changed")


async def test_a_harness_written_assistant_message(open_replay):
    async with open_replay("Hello.", "Yes.", "Bye.") as replay:
        await replay.anthropic(user("Hi."))
        history = [
            user("Hi."),
            assistant("Hello."),
            user("A"),
            assistant("I stop here."),
            user("B"),
        ]
        await replay.anthropic(*history)
        await replay.anthropic(*history, assistant("Yes."), user("C"))

        assert replay.graph == {
            "call_0": (),
            "call_1": ("call_0", "unknown_assistant"),
            "call_2": ("call_1",),
        }
        assert "I stop here." in replay.calls[1].fork_span
        start = said("user", "Hi.") + ASK
        known = start + "Hello." + END + "\n"
        asked = (
            known + said("user", "A") + ASK + "I stop here." + END + "\n" + said("user", "B") + ASK
        )
        last = asked + "Yes." + END + "\n" + said("user", "C") + ASK
        replay.assert_prompts(call_0=start, call_1=asked, call_2=last)
        assert replay.shared["call_1"] == ("call_0", at(start + "Hello." + END))
        assert [one.replayed for one in replay.calls] == [(), (), ()]
        assert replay.edges == [
            ("call_0", at(start), "Hello." + END),
            ("call_1", at(asked), "Yes." + END),
            ("call_2", at(last), "Bye." + END),
        ]


async def test_history_cut_inside_a_sampled_span(open_replay):
    async with open_replay("The answer is forty.", "Two.", "Yes.") as replay:
        await replay.anthropic(user("Say."))
        cut = [user("Say."), assistant("The answer is fo"), user("Go on.")]
        await replay.anthropic(*cut)
        await replay.anthropic(*cut, assistant("Two."), user("Sure?"))

        assert replay.graph == {
            "call_0": (),
            "call_1": ("call_0", "assistant_changed"),
            "call_2": ("call_1",),
        }
        assert replay.calls[1].fork_span == """'er is forty.","",[]]' -> 'er is fo","",[]]'"""
        start = said("user", "Say.") + ASK
        rest = start + "The answer is fo" + END + "\n" + said("user", "Go on.") + ASK
        last = rest + "Two." + END + "\n" + said("user", "Sure?") + ASK
        replay.assert_prompts(call_0=start, call_1=rest, call_2=last)
        assert replay.shared["call_1"] == ("call_0", at(start))
        # The cut words are the program's: only the whole sampled answer is trained.
        assert replay.edges == [
            ("call_0", at(start), "The answer is forty." + END),
            ("call_1", at(rest), "Two." + END),
            ("call_2", at(last), "Yes." + END),
        ]


async def test_text_after_a_tool_call(open_replay):
    """Programs put text before tools; what was sampled stays in the order it was sampled in."""
    turn = f"First.\n{LOOK}\nThen I stop."
    async with open_replay(turn, "Done.") as replay:
        first = await replay.anthropic(user("List."))
        assert [block["type"] for block in first] == ["text", "tool_use"]
        await replay.anthropic(user("List."), assistant(first), returned(first[1], "a"))
        start = said("user", "List.") + ASK
        last = start + turn + END + "\n" + result("a") + ASK
        replay.assert_prompts(call_0=start, call_1=last)
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}
        assert replay.edges == [
            ("call_0", at(start), turn + END),
            ("call_1", at(last), "Done." + END),
        ]


RESUME = "Output token limit hit. Resume directly, no apology."


@pytest.mark.parametrize(
    ("turn", "closing"),
    [("One two three.", ""), (f"So:\n{LOOK}", ""), ("<think>\nI wonder whether", "</think>")],
)
async def test_stop_at_max_tokens_with_the_programs_resume_text(open_replay, turn, closing):
    """The closing tokens that the policy did not say are environment."""
    async with open_replay(turn, "three.") as replay:
        first = await replay.anthropic(user("Count."), max_tokens=10)
        cut = byte_tokenizer().decode(list(ids(turn)[:10]), skip_special_tokens=False)
        await replay.anthropic(user("Count."), assistant(first), user(RESUME))

        start = said("user", "Count.") + ASK
        last = start + cut + closing + END + "\n" + said("user", RESUME) + ASK
        replay.assert_prompts(call_0=start, call_1=last)
        assert replay.calls[0].finish_reason == "length"
        assert replay.shared["call_1"] == ("call_0", at(start + cut))
        assert replay.calls[1].environment_ids[: at(closing + END)] == ids(closing + END)
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}
        assert replay.edges == [("call_0", at(start), cut), ("call_1", at(last), "three." + END)]
