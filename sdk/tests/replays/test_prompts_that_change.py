"""Replays in which the program changes text that the policy never said, or drops its thoughts."""

import itertools

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


def user(text):
    return {"role": "user", "content": text}


def assistant(content):
    return {"role": "assistant", "content": content}


def returned(block, content):
    """Return the message with the result of a tool_use block."""
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": content}
    return {"role": "user", "content": [result]}


LOOK = use("Bash", '{"command":  "ls"}')


def billing(suffix):
    header = f"x-anthropic-billing-header: cc_version=2.1.328.{suffix}; cc_entrypoint=sdk-cli;"
    return [{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]


async def test_billing_hash_changed_between_turns(open_replay):
    async with open_replay(LOOK, "Two files.") as replay:
        first = await replay.anthropic(user("List."), system=billing("e1b"))
        history = [user("List."), assistant(first), returned(first[0], "a b")]
        await replay.anthropic(*history, system=billing("0f7"))

        header = "x-anthropic-billing-header: cc_version=2.1.328.e1b; cc_entrypoint=sdk-cli;"
        start = said("system", f"{header}\n\nBe brief.") + said("user", "List.") + ASK
        second = start + LOOK + END + "\n" + result("a b") + ASK
        replay.assert_prompts(call_0=start, call_1=second)
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}
        assert replay.edges == [
            ("call_0", at(start), LOOK + END),
            ("call_1", at(second), "Two files." + END),
        ]


async def test_billing_header_can_be_kept_from_the_policy(open_replay):
    async with open_replay("Ok.", rules=("drop_billing_header",)) as replay:
        await replay.anthropic(user("List."), system=billing("e1b"))
        replay.assert_prompts(call_0=said("system", "Be brief.") + said("user", "List.") + ASK)
        assert replay.calls[0].rules == ("drop_billing_header@1",)


def left(tokens):
    return f"a b\n<total_tokens>{tokens} tokens left</total_tokens>"


@pytest.mark.parametrize("rules", [(), ("drop_token_budget",)])
async def test_budget_reminders(open_replay, rules):
    """The reminder of the first result says something else in every later request."""
    async with open_replay(LOOK, LOOK, "Done.", rules=rules) as replay:
        first = await replay.anthropic(user("List."))
        told = [user("List."), assistant(first)]
        second = await replay.anthropic(*told, returned(first[0], left(9000)))
        told += [returned(first[0], left(8000)), assistant(second)]
        await replay.anthropic(*told, returned(second[0], left(7000)))

        read = "a b" if rules else left(9000)
        start = said("user", "List.") + ASK
        then = start + LOOK + END + "\n" + result(read) + ASK
        last = then + LOOK + END + "\n" + result("a b" if rules else left(7000)) + ASK
        replay.assert_prompts(call_0=start, call_1=then, call_2=last)
        assert replay.graph == {"call_0": (), "call_1": ("call_0",), "call_2": ("call_1",)}
        assert replay.edges == [
            ("call_0", at(start), LOOK + END),
            ("call_1", at(then), LOOK + END),
            ("call_2", at(last), "Done." + END),
        ]


def context(number):
    marker = "OPENCLAW_INTERNAL_CONTEXT>>>"
    return user(f"<<<BEGIN_{marker}\nActive exec sessions:\n{number}\n<<<END_{marker}")


async def move_context(replay):
    """Ask 20 times; the block is always the last message and never where it was."""
    history = [{"role": "system", "content": "S"}, user("Go.")]
    for number in range(20):
        answer = await replay.chat(*history, context(number))
        called = answer["tool_calls"][0]["id"]
        history += [answer, {"role": "tool", "tool_call_id": called, "content": f"r{number}"}]


async def test_runtime_context_moved_to_the_tail_on_every_call(open_replay):
    turns = [use("exec", f'{{"n": {number}}}') for number in range(20)]
    async with open_replay(*turns) as replay:
        await move_context(replay)

        def read(number):
            done = "".join(
                turn + END + "\n" + result(f"r{i}") + ASK for i, turn in enumerate(turns[:number])
            ).removesuffix(ASK)
            start = said("system", "S") + said("user", "Go.")
            block = said("user", context(number)["content"])
            return start + (ASK + done if number else "") + block + ASK

        names = [f"call_{number}" for number in range(20)]
        replay.assert_prompts(**{name: read(i) for i, name in enumerate(names)})
        # Only call_0 has nothing to change; call_1 finds the block gone where it was.
        forks = dict.fromkeys(names[1:], "user_changed")
        assert {one.id: one.fork for one in replay.calls} == {"call_0": ""} | forks
        was, now = replay.calls[2].fork_span.split(" -> ")
        assert "<<<BEGIN_OPENCLAW" in was
        assert '{"n":1}' in now
        assert replay.graph == {"call_0": ()} | {
            name: (before, "user_changed") for before, name in itertools.pairwise(names)
        }
        assert replay.reasons == {}
        assert replay.edges == [(name, at(read(i)), turns[i] + END) for i, name in enumerate(names)]
        # Each history is shared up to the answer before the last, which came at a block.
        assert all(len(one.replayed) == 1 for one in replay.calls[1:])


async def test_without_the_runtime_context_the_history_only_grows(open_replay):
    turns = [use("exec", f'{{"n": {number}}}') for number in range(20)]
    async with open_replay(*turns, rules=("drop_runtime_context",)) as replay:
        await move_context(replay)
        assert [one.fork for one in replay.calls] == [""] * 20
        assert [one.parent_call for one in replay.calls[1:]] == [f"call_{i}" for i in range(19)]
        assert len(replay.edges) == 20
        grown = [turn + END + "\n" + result(f"r{i}") + ASK for i, turn in enumerate(turns[:19])]
        replay.assert_prompts(
            call_19=said("system", "S") + said("user", "Go.") + ASK + "".join(grown)
        )


THOUGHT = "<think>\nA file?\n</think>\n\n" + LOOK


async def drop_reasoning(replay):
    first = await replay.chat(user("List."))
    assert first.pop("reasoning_content") == "A file?"
    told = [user("List."), first]
    tool = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "a b"}
    await replay.chat(*told, tool)


async def test_reasoning_dropped_by_the_client(open_replay):
    async with open_replay(THOUGHT, "Done.") as replay:
        await drop_reasoning(replay)
        start = said("user", "List.") + ASK
        bare = start + LOOK + END + "\n" + result("a b") + ASK
        replay.assert_prompts(call_0=start, call_1=bare)
        assert replay.graph == {"call_0": (), "call_1": ("call_0", "assistant_changed")}
        assert replay.calls[1].fork_span.count("A file?") == 1
        assert replay.shared["call_1"] == ("call_0", at(start))
        assert replay.edges == [
            ("call_0", at(start), THOUGHT + END),
            ("call_1", at(bare), "Done." + END),
        ]


async def test_reasoning_is_attached_again_by_a_rule(open_replay):
    async with open_replay(THOUGHT, "Done.", rules=("reattach_reasoning",)) as replay:
        await drop_reasoning(replay)
        start = said("user", "List.") + ASK
        whole = start + THOUGHT + END + "\n" + result("a b") + ASK
        replay.assert_prompts(call_0=start, call_1=whole)
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}
        assert replay.edges == [
            ("call_0", at(start), THOUGHT + END),
            ("call_1", at(whole), "Done." + END),
        ]


async def test_cache_marks_that_move_and_texts_that_flip(open_replay):
    """The newest text is a list with a mark; in the next request it is a plain string."""
    mark = {"cache_control": {"type": "ephemeral"}}
    async with open_replay("Hello.", "Bye.") as replay:
        newest = [{"type": "text", "text": "Hi.", **mark}]
        await replay.anthropic({"role": "user", "content": newest}, system="S")
        newest = [{"type": "text", "text": "Thanks.", **mark}]
        answer = [{"type": "text", "text": "Hello.", **mark}]
        system = [{"type": "text", "text": "S", **mark}]
        told = [user("Hi."), assistant(answer), {"role": "user", "content": newest}]
        await replay.anthropic(*told, system=system)
        start = said("system", "S") + said("user", "Hi.") + ASK
        last = start + "Hello." + END + "\n" + said("user", "Thanks.") + ASK
        replay.assert_prompts(call_0=start, call_1=last)
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}


async def test_timestamps_are_compared_by_nobody(open_replay):
    async with open_replay("Hello.", "Bye.", rules=("drop_timestamp",)) as replay:
        await replay.chat(user("[Mon 2026-11-30 16:20 UTC] Hi."))
        told = [user("[Mon 2026-11-30 16:21 UTC] Hi."), assistant("Hello.")]
        await replay.chat(*told, user("[Mon 2026-11-30 16:21 UTC] Bye."))
        last = said("user", "Hi.") + ASK + "Hello." + END + "\n" + said("user", "Bye.") + ASK
        replay.assert_prompts(call_1=last)
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}


EDIT = use("Edit", '{"old": "a", "n": 5000.0, "new":  "b"}')
TOOL = {
    "name": "Edit",
    "description": "Edit it.",
    "input_schema": {"type": "object", "properties": {"replace_all": {"default": False}}},
}


async def test_tool_input_reordered_with_an_injected_default(open_replay):
    async with open_replay(EDIT, "Done.") as replay:
        first = await replay.anthropic(user("Fix."), tools=[TOOL])
        assert list(first[0]["input"]) == ["old", "n", "new"]
        changed = {"replace_all": False, "new": "b", "n": 5000, "old": "a"}
        sent = [user("Fix."), assistant([first[0] | {"input": changed}])]
        await replay.anthropic(*sent, returned(first[0], "ok"), tools=[TOOL])

        start = replay.engine.prompts["call_0"]
        assert replay.shared["call_1"] == ("call_0", len(start) + at(EDIT + END))
        assert replay.engine.prompts["call_1"] == start + ids(
            EDIT + END + "\n" + result("ok") + ASK
        )
        assert replay.graph == {"call_0": (), "call_1": ("call_0",)}
        assert [(name, text) for name, _, text in replay.edges] == [
            ("call_0", EDIT + END),
            ("call_1", "Done." + END),
        ]


async def test_another_input_is_an_unknown_change(open_replay):
    async with open_replay(EDIT, "Done.") as replay:
        first = await replay.anthropic(user("Fix."), tools=[TOOL])
        sent = [user("Fix."), assistant([first[0] | {"input": {"old": "a", "new": "c", "n": 5}}])]
        await replay.anthropic(*sent, returned(first[0], "ok"), tools=[TOOL])
        assert replay.graph["call_1"] == ("call_0", "assistant_changed")
        assert replay.calls[1].fork_span.endswith("""\"n":5,"new":"c","old":"a"}]]]'""")
