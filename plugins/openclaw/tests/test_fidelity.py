"""The real program against the real proxy: what is trained is what it was shown."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mixharness import FailureKind, Limits, Service
from mixharness.builtin.docker import DockerSandboxBackend, DockerSandboxConfig
from mixharness.rollout.run_one import run_one
from mixharness.testing import mcp_server
from mixharness.types import CallRole, Delivery
from mixharness_openclaw import OpenClawConfig
from mixharness_openclaw.config_file import APPEND_ONLY_TOOLS

pytestmark = [pytest.mark.anyio, pytest.mark.openclaw]

MCP_PORT = "18471"
SEALED = "<think>\nFirst I look.\n</think>\n\n"
COPY = '{"command": "cp a.txt b.txt; cat b.txt"}'


def call(arguments: str, name: str = "exec") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def assert_bridged(calls):
    """Each call continues the one before it, and shares all of its tokens."""
    assert [c.fork for c in calls] == [""] * len(calls), calls[-1].fork_span
    for before, after in pairwise(calls):
        own = before.parent_len + len(before.environment_ids) + len(before.sampled_ids)
        assert (after.parent_call, after.parent_len) == (before.id, own)
        assert after.continues == (before.id,)


def results(requests) -> list[str]:
    """Return what the tools said, from the last request, in any dialect."""
    items = requests[-1].get("messages") or requests[-1]["input"]
    blocks = [
        block
        for item in items
        if isinstance(item.get("content"), list)
        for block in item["content"]
        if block.get("type") == "tool_result"
    ]
    found = [item.get("output") or item.get("content") for item in items if is_result(item)]
    return found + [block["content"] for block in blocks]


def is_result(item) -> bool:
    return item.get("role") == "tool" or item.get("type") == "function_call_output"


@pytest.mark.parametrize("api", ["openai-completions", "openai-responses", "anthropic-messages"])
async def test_rewritten_and_malformed_calls_are_answered_and_are_no_fork(bench, api):
    turns = [
        SEALED + call(r'{ "timeoutSeconds" : 5.0e1 ,' + '\n\t"command":"c\\u0061t  a.txt"}'),
        f"Now  I copy it. \n{call(COPY)}",
        call('{"command": '),
        call('{"path": "b.txt"}', "read") + "\n" + call("{}", "no_such_tool"),
        "All  done.",
    ]
    bench.config = OpenClawConfig(api=api)
    rollout = await bench.run(*turns)
    assert rollout.failure is None
    assert (rollout.exit.exit_code, rollout.exit.reason) == (0, "completed")
    assert rollout.exit.final_message == "All  done."
    assert bench.file(rollout, "b.txt") == "alpha\n"
    assert len(rollout.calls) == len(turns)
    assert {(c.role, c.agent, c.delivery) for c in rollout.calls} == {
        (CallRole.MAIN, "", Delivery.DELIVERED)
    }
    assert [c.parse_status for c in rollout.calls] == ["ok", "ok", "repaired", "ok", "ok"]
    assert_bridged(rollout.calls)
    assert bench.text(rollout) == [f"{turn}<|im_end|>" for turn in turns]
    prompts = bench.engine.prompts[rollout.id]
    for number, (before, after) in enumerate(pairwise(rollout.calls)):
        joined = prompts[number] + before.sampled_ids + after.environment_ids
        assert prompts[number + 1] == joined
    said = results(bench.requests(rollout))
    assert [text.strip() for text in said] == [
        "alpha",
        "alpha",
        "Tool invalid_tool_call not found",
        "alpha",
        "Tool no_such_tool not found",
    ]


async def test_runs_at_once_do_not_mix_and_a_group_shares_its_prompt_but_for_the_folder(bench):
    async with bench.runner(call(COPY), "done") as runner:
        one, two, other = await asyncio.gather(
            run_one(runner, bench.request(sample=0)),
            run_one(runner, bench.request(sample=1)),
            run_one(runner, bench.request(id="u", prompt="Else.", files={"a.txt": "beta\n"})),
        )
    assert [r.failure for r in (one, two, other)] == [None] * 3
    assert [bench.file(r, "b.txt") for r in (one, two, other)] == ["alpha\n", "alpha\n", "beta\n"]
    asked = [prompt_of(bench.requests(rollout)[0]) for rollout in (one, two)]
    assert asked[0] == asked[1]
    for rollout, own, foreign in ((one, b"alpha", b"beta"), (other, b"beta", b"alpha")):
        requests = bench.bodies(rollout, "request")
        assert own in requests[1]
        assert not any(foreign in body for body in requests)


def prompt_of(request) -> str:
    """Return a request as text, its workspace's folder by one name."""
    system = request["messages"][0]["content"]
    folder = system.partition("Working directory: ")[2].partition("\n")[0]
    assert folder.endswith("/workspace")
    return json.dumps(request).replace(folder, "/workspace")


@pytest.mark.docker
async def test_in_containers_a_group_shares_its_prompt_to_the_last_token(bench):
    bench.sandbox = DockerSandboxBackend(DockerSandboxConfig())
    bench.limits = Limits(memory_mb=2048)
    async with bench.runner(call(COPY), "done") as runner:
        one, two = await asyncio.gather(
            run_one(runner, bench.request(sample=0)), run_one(runner, bench.request(sample=1))
        )
    assert [r.failure for r in (one, two)] == [None] * 2
    assert bench.file(one, "b.txt") == "alpha\n"
    assert bench.engine.prompts[one.id] == bench.engine.prompts[two.id]
    assert_bridged(one.calls)


async def test_a_used_up_budget_ends_the_run_at_once(bench):
    bench.limits = replace(bench.limits, max_turns=2)
    rollout = await bench.run(*[call('{"command": "true"}')] * 9)
    assert (len(rollout.calls), rollout.exit.exit_code) == (2, 1)
    assert rollout.failure.kind is FailureKind.MAX_TURNS
    assert "same-model retry" not in rollout.exit.output


async def test_a_daemon_that_a_tool_leaves_does_not_spoil_the_result(bench):
    daemon = '{"command": "setsid sleep 600 > /dev/null 2>&1 & echo started"}'
    rollout = await bench.run(call(daemon), "done")
    assert (rollout.failure, rollout.exit.reason) == (None, "completed")


async def test_all_tools_fork_at_every_call_unless_their_notices_are_dropped(bench):
    bench.config = OpenClawConfig(tools=())
    turns = (call('{"command": "cat a.txt"}'), call(COPY), "done")
    native = await bench.run(*turns, context=65_536)
    assert [c.fork for c in native.calls] == ["", "user_changed", "user_changed"]
    bench.render_rules = ("drop_runtime_context",)
    dropped = await bench.run(*turns, context=65_536)
    assert_bridged(dropped.calls)


@pytest.mark.slow
async def test_with_a_gateway_sub_agents_work_and_are_told_apart(bench):
    parent = (
        call('{"task": "copy a.txt to b.txt"}', "sessions_spawn"),
        call("{}", "sessions_yield"),
        "It was copied.",
    )
    child = (call(COPY), "I copied it.")

    def play(prompt):
        turns = parent if "You are the parent." in prompt else child
        return turns[prompt.count("<|im_start|>assistant\n") - 1]

    bench.config = OpenClawConfig(
        launch="gateway", tools=(*APPEND_ONLY_TOOLS, "sessions_spawn", "sessions_yield")
    )
    bench.limits = Limits(memory_mb=8192, agent_s=900.0, wall_s=1000.0)
    bench.render_rules = ("drop_runtime_context",)
    rollout = await bench.run(play=play, context=65_536, task={"prompt": "You are the parent."})
    assert (rollout.failure, rollout.exit.reason) == (None, "completed")
    assert bench.file(rollout, "b.txt") == "alpha\n"
    main = [c for c in rollout.calls if c.role is CallRole.MAIN]
    sub = [c for c in rollout.calls if c.role is CallRole.SUBAGENT]
    assert [len(main), len(sub), len(rollout.calls)] == [3, 2, 5]
    assert {c.agent for c in main} == {""}
    assert len({c.agent for c in sub} - {""}) == 1
    assert_bridged(main)
    assert_bridged(sub)
    said = [f"{turn}<|im_end|>" for turn in (*parent, *child)]
    assert sorted(bench.text(rollout)) == sorted(said)


async def test_the_tools_of_a_tasks_servers_are_offered(bench):
    server = Service(
        name="words",
        command=("python3", "mcp.py", MCP_PORT),
        health=("python3", "mcp.py", MCP_PORT, "check"),
        mcp_url=f"http://127.0.0.1:{MCP_PORT}/mcp",
    )
    files = {"mcp.py": Path(mcp_server.__file__).read_text()}
    turns = (call("{}", "words__secret_word"), "done")
    rollout = await bench.run(*turns, task={"files": files, "services": (server,)})
    assert rollout.failure is None
    assert results(bench.requests(rollout)) == [mcp_server.WORD]
