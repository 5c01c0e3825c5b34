"""The real program against the real proxy: what is trained is what it was shown, to the byte."""

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from mixharness import FailureKind, Limits, Service
from mixharness.proxy.renderer import ChatRenderer
from mixharness.rollout.run_one import run_one
from mixharness.testing import mcp_server
from mixharness.types import CallRole, Delivery
from mixharness_codex import CodexConfig

pytestmark = [pytest.mark.anyio, pytest.mark.codex]


def call(arguments: str, name: str = "exec_command") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def sent_calls(stream: bytes) -> list[tuple[str, str, str]]:
    """Read (call_id, name, argument characters) of the calls in a raw response."""
    found, ids = {}, {}
    for line in stream.decode().splitlines():
        event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        item = event.get("item", {})
        if item.get("type") == "function_call":
            ids[item["id"]] = (item["call_id"], item["name"])
        if event.get("type") == "response.function_call_arguments.delta":
            found[event["item_id"]] = found.get(event["item_id"], "") + event["delta"]
    return [(*ids[item], arguments) for item, arguments in found.items()]


def assert_bridged(calls):
    """Each call continues the one before it, and shares all of its tokens."""
    assert [c.fork for c in calls] == [""] * len(calls), calls[-1].fork_span
    for before, after in pairwise(calls):
        own = before.parent_len + len(before.environment_ids) + len(before.sampled_ids)
        assert (after.parent_call, after.parent_len) == (before.id, own)
        assert after.continues == (before.id,)


ODD_READ = r'{ "workdir" : "." ,' + '\n\t"cmd":"c\\u0061t  a.txt" }'
ODD_COPY = r'{"yield_time_ms":60000,"cmd":"printf \"\u00e9 %s\\n\"   \"$(cat a.txt)\" > b.txt"}'
SEALED = "<think>\nFirst I look.\n</think>\n\n"


async def test_what_the_program_is_shown_is_what_was_sampled(bench):
    turns = [SEALED + call(ODD_READ), f"Now I copy it.\n{call(ODD_COPY)}", "All  done."]
    rollout = await bench.run(*turns)

    assert rollout.failure is None
    assert (rollout.exit.exit_code, rollout.exit.reason) == (0, "completed")
    assert (rollout.exit.final_message, rollout.late_exit) == ("All  done.", False)
    assert bench.file(rollout, "b.txt") == "é alpha\n"
    assert len(rollout.calls) == 3
    assert {(c.role, c.agent, c.delivery) for c in rollout.calls} == {
        (CallRole.MAIN, "", Delivery.DELIVERED)
    }

    assert_bridged(rollout.calls)
    prompts = bench.engine.prompts[rollout.id]
    for number, (before, after) in enumerate(pairwise(rollout.calls)):
        joined = prompts[number] + before.sampled_ids + after.environment_ids
        assert prompts[number + 1] == joined

    assert bench.text(rollout) == [f"{turn}<|im_end|>" for turn in turns]
    renderer = ChatRenderer(bench.engine.tokenizer)
    sent = [sent_calls(body) for body in bench.bodies(rollout, "response")]
    assert [[one[1:] for one in calls] for calls in sent] == [
        list(renderer.parse(c.sampled_ids).tool_calls) for c in rollout.calls
    ]
    assert [one[2] for calls in sent for one in calls] == [ODD_READ, ODD_COPY]


async def test_odd_and_malformed_calls_are_answered_and_are_no_fork(bench):
    turns = [
        call('{"cmd": "true"}') + "\n" + call('{"cmd": "echo two"}'),
        call('{"cmd": "true", "yield_time_ms": 5.0e3}'),
        call('{"cmd": 5, "yield_time_ms": 12345678901234567890}'),
        call('{"bogus": 1, "cmd": "true"}'),
        call(r'{"cmd": "echo \\u00e9 \u00e9", "cmd": "cd /tmp && ls \\\\;  "}'),
        call("{}", "no_such_tool"),
        SEALED + "Reasoned.\n" + call('{"cmd": "true"}'),
        "done",
    ]
    rollout = await bench.run(*turns)
    assert rollout.failure is None
    assert len(rollout.calls) == len(turns)
    assert_bridged(rollout.calls)
    items = bench.requests(rollout)[-1]["input"]
    answers = [item["output"] for item in items if item["type"] == "function_call_output"]
    assert len(answers) == 8
    assert [answer.split(":")[0] for answer in answers if "Chunk ID" not in answer] == [
        *["failed to parse function arguments"] * 3,  # the third has a key twice
        "unsupported call",
    ]
    handle = [item["encrypted_content"] for item in items if item["type"] == "reasoning"]
    assert len(handle) == 1


async def test_runs_at_once_do_not_mix_and_a_group_shares_its_prompt(bench):
    copy = call('{"cmd": "cp a.txt b.txt; cat b.txt"}')
    async with bench.runner(copy, "done") as runner:
        one, two, other = await asyncio.gather(
            run_one(runner, bench.request(sample=0)),
            run_one(runner, bench.request(sample=1)),
            run_one(runner, bench.request(id="u", prompt="Else.", files={"a.txt": "beta\n"})),
        )
    assert [r.failure for r in (one, two, other)] == [None] * 3
    assert bench.engine.prompts[one.id][0] == bench.engine.prompts[two.id][0]
    assert [bench.file(r, "b.txt") for r in (one, two, other)] == ["alpha\n", "alpha\n", "beta\n"]
    for rollout, own, foreign in ((one, b"alpha", b"beta"), (other, b"beta", b"alpha")):
        requests = bench.bodies(rollout, "request")
        assert own in requests[1]
        assert not any(foreign in body for body in requests)


async def test_commands_reach_no_network_and_see_no_key(bench):
    visits = []
    trap = await asyncio.start_server(lambda _, w: (visits.append(1), w.close()), "127.0.0.1", 0)
    port = trap.sockets[0].getsockname()[1]
    look = f"(echo > /dev/tcp/127.0.0.1/{port}) 2>&1; env | grep -c KEY"
    async with trap:
        rollout = await bench.run(call(json.dumps({"cmd": look})), "done")
    assert (visits, rollout.failure) == ([], None)
    said = bench.requests(rollout)[-1]["input"][-1]["output"]
    assert said.endswith("\n0\n")


async def test_a_project_file_in_the_workspace_moves_no_call(bench):
    moved = '[model_providers.proxy]\nbase_url = "http://127.0.0.1:1/v1"\n'
    rollout = await bench.run(
        "done", task={"files": {".codex/config.toml": moved, "AGENTS.md": "Sing."}}
    )
    assert (rollout.failure, rollout.exit.final_message) == (None, "done")
    assert "Sing." not in json.dumps(bench.requests(rollout))


async def test_sub_agents_are_told_apart_and_their_tools_have_a_namespace(bench):
    turns = [
        call('{"message": "say hi"}', "multi_agent_v1__spawn_agent"),
        call('{"cmd": "sleep 1"}'),
        "done",
    ]

    def play(prompt):
        return bench.engine.turn(prompt) if "the parent" in prompt else "I am the child."

    bench.config = CodexConfig(agents=True)
    rollout = await bench.run(*turns, play=play, task={"prompt": "You are the parent."})
    assert rollout.failure is None
    main = [c for c in rollout.calls if c.role is CallRole.MAIN]
    (child,) = [c for c in rollout.calls if c.role is CallRole.SUBAGENT]
    assert [c.agent for c in main] == [""] * 3
    assert child.agent != ""
    assert_bridged(main)


async def test_the_turn_limit_ends_the_run(bench):
    bench.limits = Limits(max_turns=2)
    rollout = await bench.run(*[call('{"cmd": "true"}')] * 9)
    assert (len(rollout.calls), rollout.exit.exit_code) == (2, 1)
    assert rollout.failure.kind is FailureKind.MAX_TURNS


async def test_waiting_for_a_command_that_hangs_ends_and_leaves_as_much_time_again(bench):
    def play(prompt):
        number = prompt.count("<|im_start|>assistant\n")
        if number == 1:
            return call('{"cmd": "sleep 600", "yield_time_ms": 250}')
        running = re.search(r"session ID (\d+)", prompt)[1]
        wait = {"session_id": int(running), "chars": "", "yield_time_ms": 600_000}
        return call(json.dumps(wait), "write_stdin") if number == 2 else "It hangs."

    bench.limits = Limits(agent_s=12.0)
    rollout = await bench.run(play=play)
    assert (rollout.failure, rollout.exit.final_message) == (None, "It hangs.")
    assert 6.0 < rollout.agent_s < 12.0
    assert_bridged(rollout.calls)


async def test_a_prompt_that_does_not_fit_ends_the_run(bench):
    loud = call('{"cmd": "seq 4000"}')
    rollout = await bench.run(loud, "done", context=8192)
    assert (len(rollout.calls), rollout.exit.reason) == (1, "context_overflow")
    assert rollout.failure.kind is FailureKind.CONTEXT_OVERFLOW


async def test_a_small_window_makes_it_compact(bench):
    loud = call('{"cmd": "seq 1500"}')

    def play(prompt):
        if "<tools>" not in prompt:
            return "Summary: a.txt was read."
        return "done" if "Summary:" in prompt else loud

    bench.config = CodexConfig(context_window=12_000)
    rollout = await bench.run(play=play)
    assert rollout.failure is None
    assert CallRole.COMPACTION in {c.role for c in rollout.calls}
    assert rollout.calls[-1].role is CallRole.MAIN


@pytest.mark.parametrize(("failures", "calls"), [(1, 1), (99, 0)])
async def test_a_failing_engine_is_asked_again_and_recorded(bench, failures, calls):
    rollout = await bench.run("done", failures=failures)
    assert len([c for c in rollout.calls if c.sampled_ids]) == calls
    if calls:
        assert (rollout.failure, rollout.exit.final_message) == (None, "done")
    else:
        assert rollout.failure.kind is FailureKind.ENGINE_ERROR
        assert (rollout.exit.exit_code, rollout.exit.reason) == (1, "error")


MCP_PORT = "18472"


async def test_the_tools_of_a_tasks_servers_are_offered(bench):
    server = Service(
        name="words",
        command=("python3", "mcp.py", MCP_PORT),
        health=("python3", "mcp.py", MCP_PORT, "check"),
        mcp_url=f"http://127.0.0.1:{MCP_PORT}/mcp",
    )
    files = {"mcp.py": Path(mcp_server.__file__).read_text()}
    turns = (call("{}", "mcp__words__secret_word"), "done")
    rollout = await bench.run(*turns, task={"files": files, "services": (server,)})
    assert rollout.failure is None
    assert_bridged(rollout.calls)
    (said,) = [
        item["output"]
        for item in bench.requests(rollout)[-1]["input"]
        if item["type"] == "function_call_output"
    ]
    assert mcp_server.WORD in json.dumps(said)
