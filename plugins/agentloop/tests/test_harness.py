import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from mixharness import Limits, Rollout, Score, Task, Verifier, Workspace
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.proxy.log import read_bodies
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner
from mixharness.types import FailureKind
from mixharness_agentloop.harness import AgentLoop, AgentLoopConfig

pytestmark = pytest.mark.anyio

Run = Callable[..., Awaitable[Rollout]]


def call(name: str, **arguments: object) -> str:
    body = orjson.dumps({"name": name, "arguments": arguments}).decode()
    return f"<tool_call>\n{body}\n</tool_call>"


class Copied(Verifier[ComponentConfig]):
    """Scores 1 when `out.txt` holds what `in.txt` held."""

    name = "copied"

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        return Score(value=float(workspace.read("out.txt") == task.files["in.txt"]))


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """Run AgentLoop on a copying task with an engine that plays the given turns."""
    proxies: list[Proxy] = []

    async def play(
        turns: Sequence[str], limits: Limits | None = None, context: int = 32768, **config: Any
    ) -> Rollout:
        engine = ScriptedEngine(ScriptedConfig(turns=tuple(turns), context=context))
        await engine.start()
        proxies.append(Proxy(engine, ProxySettings()))
        await proxies[-1].start()
        runner = Runner(
            proxy=proxies[-1],
            sandbox=LocalSandboxBackend(LocalSandboxConfig()),
            verifiers={"copied": Copied(ComponentConfig())},
            store=RunStore(tmp_path),
        )
        slot = HarnessSlot(
            label="agentloop",
            harness=AgentLoop(AgentLoopConfig(**config)),
            program=None,
            limits=limits or Limits(),
        )
        task = Task(
            id="copy",
            prompt="Copy in.txt to out.txt",
            verifier="copied",
            files={"in.txt": "a word\n"},
        )
        return await run_one(runner, RolloutRequest(task=task, slot=slot, sample=0, stage="test"))

    yield play
    for proxy in proxies:
        await proxy.stop()


def bodies(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    folder = tmp_path / "rollouts" / "test-copy-agentloop-0"
    return [orjson.loads(body.data) for body in read_bodies(folder) if body.kind == kind]


async def test_a_task_is_solved_over_several_calls_and_recorded(run: Run, tmp_path: Path) -> None:
    rollout = await run(
        [
            call("read", path="in.txt"),
            "Now I write it." + call("write", path="out.txt", content="a word\n"),
            "Copied.",
        ]
    )
    assert (rollout.failure, rollout.reward) == (None, 1.0)
    assert rollout.exit is not None
    assert rollout.exit.final_message == "Copied."
    assert [c.parent_call for c in rollout.calls] == [None, "call_0", "call_1"]
    assert all(c.fork == "" for c in rollout.calls)
    messages = bodies(tmp_path, "request")[-1]["messages"]
    assert [m["role"] for m in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["a word\n", "wrote out.txt"]


async def test_the_first_prompt_is_the_same_in_every_rollout(run: Run, tmp_path: Path) -> None:
    first, second = [await run(["done"], tools=("bash",)) for _ in range(2)]
    assert first.calls[0].environment_ids == second.calls[0].environment_ids
    (request,) = bodies(tmp_path, "request")
    assert [tool["function"]["name"] for tool in request["tools"]] == ["bash"]


async def test_bad_calls_get_errors_and_the_loop_goes_on(run: Run, tmp_path: Path) -> None:
    rollout = await run(
        [
            call("fly", where="up"),
            call("bash", command=5),
            call("bash", command="cp in.txt out.txt"),
            "done",
        ],
        max_invalid=3,
    )
    assert (rollout.failure, rollout.reward) == (None, 1.0)
    results = [m["content"] for m in bodies(tmp_path, "request")[-1]["messages"][3::2]]
    assert results == [
        "error: no tool 'fly'; use bash, read, write, edit",
        "error: the arguments of bash must be text",
        "(no output)",
    ]


async def test_nothing_but_bad_calls_ends_the_loop(run: Run) -> None:
    rollout = await run([call("fly")], max_invalid=2)
    assert len(rollout.calls) == 2
    assert rollout.failure is not None
    assert rollout.failure.kind is FailureKind.INVALID_TOOL_LOOP
    assert rollout.reward == 0.0


async def test_the_turn_limit_ends_the_loop(run: Run) -> None:
    rollout = await run([call("bash", command="cp in.txt out.txt")], Limits(max_turns=3))
    assert len(rollout.calls) == 3
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.reward) == (FailureKind.MAX_TURNS, 1.0)


async def test_a_command_is_stopped_before_the_agents_time_is_over(run: Run) -> None:
    turns = [call("bash", command="sleep 100"), call("bash", command="cp in.txt out.txt"), "done"]
    rollout = await run(turns, Limits(agent_s=4, wall_s=60))
    assert (rollout.failure, rollout.reward) == (None, 1.0)
    assert 2 <= rollout.agent_s < 4


async def test_a_used_up_token_budget_ends_the_loop(run: Run) -> None:
    turns = [call("bash", command="cp in.txt out.txt")]
    rollout = await run(turns, Limits(tokens=len(turns[0]) + 20))
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.reward) == (FailureKind.MAX_TOKENS, 1.0)
    assert len(rollout.calls) == 2


async def test_a_full_context_ends_the_loop(run: Run) -> None:
    rollout = await run([call("bash", command="seq 300")], context=2500, tools=("bash",))
    assert len(rollout.calls) >= 1
    assert rollout.failure is not None
    assert rollout.failure.kind is FailureKind.CONTEXT_OVERFLOW


def test_the_plugin_is_light_to_import() -> None:
    script = "import sys, mixharness_agentloop; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
