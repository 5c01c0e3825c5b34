"""Replays with several agents in one rollout, and with a compacted history."""

import anyio
import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.proxy.log import read_calls
from mixharness.types import CallRole

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


def returned(*pairs):
    """Return the message with the results of tool_use blocks."""
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": content}
        for block, content in pairs
    ]
    return {"role": "user", "content": results}


SPAWN = use("Agent", '{"prompt": "Count."}')


async def test_two_parallel_subagents_with_the_same_prompt(open_replay):
    """They say the same, too; each goes on from its own answer."""
    turns = [f"{SPAWN}\n{SPAWN}", "Three.", "Three.", "Sure.", "Sure!", "Both say three."]
    async with open_replay(*turns) as replay:
        first = await replay.anthropic(user("Ask two."))
        async with anyio.create_task_group() as group:
            for agent in ("x", "y"):
                group.start_soon(ask_as(replay, agent), user("Count."))
        history = [user("Count."), assistant("Three."), user("Sure?")]
        for agent in ("x", "y"):
            await ask_as(replay, agent)(*history)
        results = returned((first[0], "Sure."), (first[1], "Sure!"))
        await replay.anthropic(user("Ask two."), assistant(first), results)

        own = {one.id: one.agent for one in replay.calls}
        assert sorted(own.values()) == ["", "", "x", "x", "y", "y"]
        x, y = ("call_1", "call_2") if own["call_1"] == "x" else ("call_2", "call_1")
        assert replay.graph == {
            "call_0": (),
            "call_1": (),
            "call_2": (),
            "call_3": (x,),
            "call_4": (y,),
            "call_5": ("call_0",),
        }
        count = said("user", "Count.") + ASK
        sure = count + "Three." + END + "\n" + said("user", "Sure?") + ASK
        main = said("user", "Ask two.") + ASK
        both = said(
            "user",
            "<tool_response>\nSure.\n</tool_response>\n<tool_response>\nSure!\n</tool_response>",
        )
        last = main + turns[0] + END + "\n" + both + ASK
        replay.assert_prompts(
            call_0=main, call_1=count, call_2=count, call_3=sure, call_4=sure, call_5=last
        )
        assert replay.reasons == dict.fromkeys(
            ("call_1", "call_2", "call_3", "call_4"), "role_subagent"
        )
        assert replay.edges == [
            ("call_0", at(main), turns[0] + END),
            ("call_5", at(last), turns[5] + END),
        ]


def ask_as(replay, agent):
    async def ask(*messages):
        return await replay.anthropic(*messages, role="subagent", agent=agent)

    return ask


@pytest.mark.parametrize("hinted", [True, False])
async def test_two_interleaved_subagents_and_their_parent(open_replay, hinted):
    """x asks, y asks, the parent goes on, x and y go on: three chains, whoever came between.

    Without hints the sub-agents are told apart by their first text, which the parent gave a tool.
    """
    spawn = "\n".join(use("Agent", f'{{"prompt": "Count {what}."}}') for what in ("x", "y"))
    turns = [spawn, use("Wc", '"x"'), use("Wc", '"y"'), "Waiting.", "7 x.", "8 y.", "7 and 8."]
    turns[1], turns[2] = use("Wc", '{"what": "x"}'), use("Wc", '{"what": "y"}')
    async with open_replay(*turns) as replay:

        async def ask(agent, *messages):
            hints = {"role": "subagent" if agent else "main", "agent": agent} if hinted else {}
            return await replay.anthropic(*messages, **hints)

        start = user("Ask two.")
        first = await ask("", start)
        ran = {}
        for what in ("x", "y"):
            ran[what] = await ask(what, user(f"Count {what}."))
        running = [start, assistant(first), returned((first[0], "running"), (first[1], "running"))]
        await ask("", *running)
        for what, number in (("x", "7"), ("y", "8")):
            content = ran[what]
            history = [user(f"Count {what}."), assistant(content), returned((content[0], number))]
            await ask(what, *history)
        await ask("", *running, assistant("Waiting."), user("x: 7 x. y: 8 y."))

        assert replay.graph == {
            "call_0": (),
            "call_1": (),
            "call_2": (),
            "call_3": ("call_0",),
            "call_4": ("call_1",),
            "call_5": ("call_2",),
            "call_6": ("call_3",),
        }
        agents = [one.agent for one in replay.calls]
        assert agents[1] == agents[4] != agents[2] == agents[5]
        assert agents[0] == agents[3] == agents[6] == ""
        main = said("user", "Ask two.") + ASK
        waits = "<tool_response>\nrunning\n</tool_response>"
        third = main + spawn + END + "\n" + said("user", f"{waits}\n{waits}") + ASK
        last = third + "Waiting." + END + "\n" + said("user", "x: 7 x. y: 8 y.") + ASK
        replay.assert_prompts(
            call_0=main,
            call_3=third,
            call_4=said("user", "Count x.") + ASK + turns[1] + END + "\n" + result("7") + ASK,
            call_5=said("user", "Count y.") + ASK + turns[2] + END + "\n" + result("8") + ASK,
            call_6=last,
        )
        subagents = ("call_1", "call_2", "call_4", "call_5")
        assert replay.reasons == dict.fromkeys(subagents, "role_subagent")
        assert replay.edges == [
            ("call_0", at(main), spawn + END),
            ("call_3", at(third), "Waiting." + END),
            ("call_6", at(last), "7 and 8." + END),
        ]


async def test_a_nested_subagent(open_replay):
    inner = use("Agent", '{"prompt": "Count the files for the other one."}')
    outer = use("Agent", '{"prompt": "Ask another agent to count."}')
    async with open_replay(outer, inner, "3.", "It says 3.", "3 files.") as replay:
        first = await replay.anthropic(user("How many?"))
        second = await replay.anthropic(user("Ask another agent to count."))
        await replay.anthropic(user("Count the files for the other one."))
        middle = [
            user("Ask another agent to count."),
            assistant(second),
            returned((second[0], "3")),
        ]
        await replay.anthropic(*middle)
        await replay.anthropic(
            user("How many?"), assistant(first), returned((first[0], "It says 3."))
        )
        assert replay.graph == {
            "call_0": (),
            "call_1": (),
            "call_2": (),
            "call_3": ("call_1",),
            "call_4": ("call_0",),
        }
        assert replay.reasons == dict.fromkeys(("call_1", "call_2", "call_3"), "role_subagent")
        assert [name for name, _, _ in replay.edges] == ["call_0", "call_4"]


LOOK, READ = use("Bash", '{"command": "ls"}'), use("Bash", '{"command": "cat a"}')
SUMMARY = "The user wants a copied. I said: There are two files, a and b."


async def test_compaction_whose_summary_quotes_a_sampled_span(open_replay):
    """The last pair stays: the new beginning goes on from it, in the same epoch."""
    turns = [LOOK, "There are two files, a and b.", READ, SUMMARY, "Copied."]
    async with open_replay(*turns) as replay:
        first = await replay.anthropic(user("Copy a."), role="main")
        history = [user("Copy a."), assistant(first), returned((first[0], "a b"))]
        second = await replay.anthropic(*history, role="main")
        history += [assistant(second), user("Go on.")]
        third = await replay.anthropic(*history, role="main")
        await replay.anthropic(*history[:-1], user("Summarize."), role="compaction")
        tail = [assistant(third), returned((third[0], "alpha"))]
        await replay.anthropic(user(f"Continued. {SUMMARY}"), *tail, role="main")

        assert replay.graph == {
            "call_0": (),
            "call_1": ("call_0",),
            "call_2": ("call_1",),
            "call_3": ("call_1",),
            "call_4": ("call_2", "user_changed"),
        }
        assert "Copy a." in replay.calls[4].fork_span
        start = said("user", "Copy a.") + ASK
        two = start + LOOK + END + "\n" + result("a b") + ASK
        told = two + turns[1] + END + "\n"
        three, summing = (told + said("user", text) + ASK for text in ("Go on.", "Summarize."))
        anew = said("user", f"Continued. {SUMMARY}") + ASK + READ + END + "\n"
        last = anew + result("alpha") + ASK
        replay.assert_prompts(call_0=start, call_1=two, call_2=three, call_3=summing, call_4=last)
        # The tail is replayed; the quoted words are environment, whoever said them.
        (span,) = replay.calls[4].replayed
        assert replay.calls[4].environment_ids[slice(*span)] == ids(READ + END)
        assert replay.reasons == {"call_3": "role_compaction"}
        assert replay.edges == [
            ("call_0", at(start), LOOK + END),
            ("call_1", at(two), turns[1] + END),
            ("call_2", at(three), READ + END),
            ("call_4", at(last), "Copied." + END),
        ]


@pytest.mark.parametrize("hinted", [True, False])
async def test_compaction_that_keeps_nothing_starts_an_epoch(open_replay, hinted):
    """Both chains are trained. Without hints the quoted answer shows which call summed up."""
    async with open_replay(LOOK, "Two files.", SUMMARY, READ, "Copied.") as replay:

        async def ask(*messages, role="main"):
            return await replay.anthropic(*messages, role=role if hinted else "")

        first = await ask(user("Copy a."))
        history = [user("Copy a."), assistant(first), returned((first[0], "a b"))]
        await ask(*history)
        history += [assistant("Two files."), user("Summarize.")]
        await ask(*history, role="compaction")
        anew = [user(f"Continued. {SUMMARY}")]
        second = await ask(*anew)
        await ask(*anew, assistant(second), returned((second[0], "alpha")))

        assert replay.calls[2].role is CallRole.COMPACTION
        assert [one.role for one in read_calls(replay.folder)] == [one.role for one in replay.calls]
        assert replay.graph == {
            "call_0": (),
            "call_1": ("call_0",),
            "call_2": ("call_1",),
            "call_3": ("user_changed",),
            "call_4": ("call_3",),
        }
        assert replay.reasons == {"call_2": "role_compaction"}
        assert [name for name, _, _ in replay.edges] == ["call_0", "call_1", "call_3", "call_4"]


async def test_a_title_asked_for_first_is_no_main_call(open_replay):
    tools = [{"name": "Bash", "description": "Run.", "input_schema": {"type": "object"}}]
    async with open_replay("A title.", LOOK, "Done.") as replay:
        await replay.anthropic(user("Copy a."), system="Name it.")
        first = await replay.anthropic(user("Copy a."), system="S", tools=tools)
        history = [user("Copy a."), assistant(first), returned((first[0], "ok"))]
        await replay.anthropic(*history, system="S", tools=tools)
        assert replay.reasons == {"call_0": "role_auxiliary"}
        assert [name for name, _, _ in replay.edges] == ["call_1", "call_2"]
