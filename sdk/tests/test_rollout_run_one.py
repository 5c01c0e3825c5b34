import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest

from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.engine import GenerateRequest, Generation
from mixharness.errors import SandboxError
from mixharness.harness import Harness, Session
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.proxy.log import CALLS
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.sandbox import ExecResult, Sandbox, SandboxSpec, Workspace
from mixharness.types import FailureKind, HarnessExit, Limits, Rollout, Score, Service, Task
from mixharness.verifier import Verifier

pytestmark = pytest.mark.anyio


class AskThenRunConfig(ComponentConfig):
    calls: int = 1
    script: str = "true"
    key: str = ""
    raises: str = ""
    late: bool = False


class AskThenRun(Harness[AskThenRunConfig]):
    """Makes model calls, then runs a shell script in the sandbox."""

    name = "ask_then_run"
    config_type = AskThenRunConfig
    dialects = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        key = self.config.key or session.secret
        async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
            for number in range(self.config.calls):
                await client.post(
                    f"{session.base_url}/v1/chat/completions",
                    headers={"authorization": f"Bearer {key}"},
                    json={"messages": [{"role": "user", "content": f"{number}"}]},
                )
        done = await session.sandbox.exec(["sh", "-c", self.config.script])
        if self.config.raises:
            raise ValueError(self.config.raises)
        code = None if self.config.late else done.exit_code
        return HarnessExit(exit_code=code, output=done.stderr.decode())


class Slow(ScriptedEngine):
    """Takes its time, and says which requests it was freed of."""

    sleep_s = 0.0

    def __init__(self, config: ScriptedConfig) -> None:
        super().__init__(config)
        self.cancelled: list[str] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        try:
            await asyncio.sleep(self.sleep_s)
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        return await super().generate(request)


class Dead(ScriptedEngine):
    """Cannot sample."""

    async def generate(self, request: GenerateRequest) -> Generation:
        raise RuntimeError("out of memory")


class FileScore(Verifier[ComponentConfig]):
    """Scores 1 when `out` holds the answer; `poison` makes it raise, always or `raises` times."""

    name = "file_score"

    def __init__(self, raises: int = 0) -> None:
        super().__init__(ComponentConfig())
        self.raises = raises
        self.calls = 0
        self.at_score: Callable[[], None] = lambda: None

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        self.calls += 1
        self.at_score()
        if self.calls <= self.raises or workspace.read("poison") is not None:
            raise RuntimeError("the grader fell over")
        return Score(value=float(workspace.read("out") == task.answer["out"]))


@pytest.fixture
def temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Where sandboxes live; open to the sandbox's user, unlike tmp_path."""
    tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="mixharness-test-") as name:
        Path(name).chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


class Bench:
    """The parts of a run; each test changes what it is about."""

    def __init__(self, folder: Path) -> None:
        self.store = RunStore(folder)
        self.engine: ScriptedEngine = ScriptedEngine(ScriptedConfig(turns=("fine",)))
        self.verifier = FileScore()
        self.settings = RunnerSettings()
        self.sandbox = LocalSandboxConfig()
        self.limits = Limits(agent_s=30, wall_s=60)
        self.files: dict[str, str] = {"in": "x"}
        self.proxies: list[Proxy] = []

    async def runner(self) -> Runner:
        await self.engine.start()
        proxy = Proxy(self.engine, ProxySettings())
        await proxy.start()
        self.proxies.append(proxy)
        return Runner(
            proxy=proxy,
            sandbox=LocalSandboxBackend(self.sandbox),
            verifiers={"file_score": self.verifier},
            store=self.store,
            settings=self.settings,
        )

    def request(self, **config: Any) -> RolloutRequest:
        task = Task(
            id="t", prompt="p", verifier="file_score", files=self.files, answer={"out": "x"}
        )
        slot = HarnessSlot(
            label="shell",
            harness=AskThenRun(AskThenRunConfig(**config)),
            program=None,
            limits=self.limits,
        )
        return RolloutRequest(task=task, slot=slot, sample=0, stage="test")

    async def run(self, **config: Any) -> Rollout:
        return await run_one(await self.runner(), self.request(**config))


@pytest.fixture
async def bench(temporary: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for proxy in bench.proxies:
        await proxy.stop()
    assert list(temporary.iterdir()) == []  # every sandbox is gone, on every path


def alive(seconds: str) -> bool:
    return any(
        process.info["cmdline"] == ["sleep", seconds] and process.info["status"] != "zombie"
        for process in psutil.process_iter(["cmdline", "status"])
    )


async def kind_and_score(rollout: Awaitable[Rollout]) -> tuple[FailureKind | None, float | None]:
    done = await rollout
    kind = done.failure.kind if done.failure else None
    return kind, done.score.value if done.score else None


async def test_a_solved_task_is_scored_and_on_disk(bench: Bench) -> None:
    rollout = await bench.run(script="cp in out", calls=2)
    assert (rollout.failure, rollout.reward, len(rollout.calls)) == (None, 1.0, 2)
    assert rollout.id == "test-t-shell-0"
    assert bench.store.finished() == [rollout.id]
    assert bench.store.load(rollout.id) == rollout


async def test_the_verifier_starts_when_sandbox_and_session_are_gone(
    bench: Bench, temporary: Path
) -> None:
    seen: list[bool] = []
    bench.verifier.at_score = lambda: seen.append(alive("4720") or any(temporary.iterdir()))
    await bench.run(script="setsid sleep 4720 & cp in out")
    assert seen == [False]


async def test_a_daemon_of_the_agent_is_killed_and_no_failure(bench: Bench) -> None:
    rollout = await bench.run(script="setsid env -i sleep 4721 & cp in out")
    assert (rollout.failure, rollout.reward, rollout.late_exit) == (None, 1.0, False)
    assert not alive("4721")


async def test_a_program_killed_after_its_result_is_a_late_exit(bench: Bench) -> None:
    rollout = await bench.run(script="cp in out", late=True)
    assert (rollout.failure, rollout.reward, rollout.late_exit) == (None, 1.0, True)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"script": "cp in out; echo why >&2; exit 3"}, FailureKind.NONZERO_EXIT),
        ({"script": "cp in out", "raises": "odd output"}, FailureKind.NONZERO_EXIT),
    ],
)
async def test_trouble_after_calls_is_the_policys_and_scored(
    bench: Bench, config: dict[str, Any], kind: FailureKind
) -> None:
    assert await kind_and_score(bench.run(**config)) == (kind, 1.0)


async def test_on_limit_zero_gives_policy_failures_nothing(bench: Bench) -> None:
    bench.settings = RunnerSettings(on_limit="zero")
    done = await kind_and_score(bench.run(script="cp in out; exit 3"))
    assert done == (FailureKind.NONZERO_EXIT, 0.0)


async def test_a_harness_without_calls_did_not_start(bench: Bench) -> None:
    done = await kind_and_score(bench.run(calls=0, script="cp in out; exit 1"))
    assert done == (FailureKind.HARNESS_START, None)


async def test_a_hang_is_the_policys_and_what_it_did_before_counts(bench: Bench) -> None:
    bench.limits = Limits(agent_s=1.0, wall_s=60)
    done = await kind_and_score(bench.run(script="cp in out; sleep 4722"))
    assert done == (FailureKind.AGENT_TIMEOUT, 1.0)
    assert not alive("4722")


class Undying(LocalSandboxBackend):
    """A sandbox in which a process cannot be killed, as one that waits for a dead disk."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with super().open(spec) as sandbox:

            async def processes() -> int:
                return 1

            sandbox.processes = processes  # type: ignore[method-assign]
            yield sandbox


async def test_what_does_not_settle_is_the_infrastructures(bench: Bench) -> None:
    bench.settings = RunnerSettings(settle_limit_s=0.2)
    runner = await bench.runner()
    runner = replace(runner, sandbox=Undying(bench.sandbox))
    done = await kind_and_score(run_one(runner, bench.request(script="cp in out")))
    assert done == (FailureKind.SETTLE_TIMEOUT, None)


async def test_calls_on_no_live_branch_are_noted_at_assembly(bench: Bench) -> None:
    """Two questions that have nothing in common: of two chains the later one stays."""
    rollout = await bench.run(script="cp in out", calls=2)
    lines = (bench.store.path(rollout.id) / CALLS).read_bytes().splitlines()
    events = [orjson.loads(line) for line in lines]
    assert [e for e in events if e["event"] == "superseded"] == [
        {"event": "superseded", "id": "call_0", "reason": "losing_chain"}
    ]


async def test_the_agent_clock_does_not_count_sampling(bench: Bench) -> None:
    bench.limits = Limits(agent_s=1.5, wall_s=60)
    bench.engine = Slow(ScriptedConfig(turns=("fine",)))
    bench.engine.sleep_s = 2.0
    rollout = await bench.run(script="cp in out")
    assert (rollout.failure, rollout.reward) == (None, 1.0)
    assert rollout.agent_s < 1.5 < 2.0 < rollout.wall_s


async def test_an_engine_that_hangs_is_the_infrastructures_and_is_freed(bench: Bench) -> None:
    bench.limits = Limits(agent_s=30, wall_s=0.5)
    bench.engine = Slow(ScriptedConfig(turns=("fine",)))
    bench.engine.sleep_s = 1000.0
    assert await kind_and_score(bench.run()) == (FailureKind.WALL_CLOCK, None)
    assert bench.engine.cancelled == ["test-t-shell-0/call_0"]


async def test_an_engine_that_raises_is_the_infrastructures(bench: Bench) -> None:
    bench.engine = Dead(ScriptedConfig(turns=("fine",)))
    done = await kind_and_score(bench.run(script="exit 1"))
    assert done == (FailureKind.ENGINE_ERROR, None)


async def test_a_sandbox_that_does_not_open_is_the_infrastructures(bench: Bench) -> None:
    bench.files = {"../outside": ""}
    assert await kind_and_score(bench.run()) == (FailureKind.SANDBOX_START, None)
    assert bench.store.load("test-t-shell-0").calls == ()


async def test_a_grader_that_falls_over_once_is_asked_again(bench: Bench) -> None:
    bench.verifier = FileScore(raises=1)
    assert await kind_and_score(bench.run(script="cp in out")) == (None, 1.0)
    assert bench.verifier.calls == 2


async def test_a_grader_that_only_this_workspace_breaks_is_the_policys(bench: Bench) -> None:
    done = await kind_and_score(bench.run(script="cp in out; touch poison"))
    assert done == (FailureKind.GRADER_BROKEN, 0.0)
    assert bench.verifier.calls == 3  # twice on the snapshot, once on the untouched workspace


async def test_a_grader_that_always_falls_over_is_the_infrastructures(bench: Bench) -> None:
    bench.verifier = FileScore(raises=1000)
    done = await kind_and_score(bench.run(script="cp in out"))
    assert done == (FailureKind.JUDGE_UNAVAILABLE, None)


async def test_a_settings_file_with_a_base_url_scores_zero(bench: Bench) -> None:
    bench.files = {"in": "x", ".claude/settings.json": '{"env": {"ANTHROPIC_BASE_URL": "x"}}'}
    done = await kind_and_score(bench.run(script="cp in out"))
    assert done == (FailureKind.ENDPOINT_REDIRECT, 0.0)


async def test_a_call_with_a_wrong_key_scores_zero(bench: Bench) -> None:
    done = await kind_and_score(bench.run(script="cp in out", key="guessed"))
    assert done == (FailureKind.FOREIGN_CALL, 0.0)


async def test_a_workspace_too_large_to_grade_scores_zero(bench: Bench) -> None:
    bench.limits = Limits(agent_s=30, wall_s=60, disk_mb=1)
    done = await kind_and_score(bench.run(script="cp in out; head -c 2000000 /dev/zero > big"))
    assert done == (FailureKind.RESOURCE_LIMIT, 0.0)


class Mortal(LocalSandboxBackend):
    """A sandbox that is gone once a file `bomb` is in it, as a container that ate its memory."""

    limit = "memory_mb"

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with super().open(spec) as sandbox:
            run, kill = sandbox.exec, sandbox.kill

            async def dying(*args: Any, **kwargs: Any) -> ExecResult:
                done = await run(*args, **kwargs)
                if Path(sandbox.workspace, "bomb").exists():
                    raise SandboxError("no such container")
                return done

            async def nobody() -> None:
                if Path(sandbox.workspace, "bomb").exists():
                    raise SandboxError("no such container")
                await kill()

            async def limit_hit() -> str:
                return self.limit

            sandbox.exec, sandbox.kill = dying, nobody  # type: ignore[method-assign]
            sandbox.limit_hit = limit_hit  # type: ignore[method-assign]
            yield sandbox


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("memory_mb", (FailureKind.RESOURCE_LIMIT, 0.0)), ("", (FailureKind.CONNECTION, None))],
)
async def test_a_sandbox_that_dies_is_the_policys_where_a_limit_killed_it(
    bench: Bench, limit: str, expected: tuple[FailureKind, float | None]
) -> None:
    runner = await bench.runner()
    mortal = Mortal(bench.sandbox)
    mortal.limit = limit
    rollout = await run_one(
        replace(runner, sandbox=mortal), bench.request(script="cp in out; touch bomb")
    )
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.score and rollout.score.value) == expected
    assert len(rollout.calls) == 1  # how long it was is known all the same
    assert bench.store.load(rollout.id) == rollout


class Sticky(LocalSandboxBackend):
    """A sandbox that does not close as it should, as one whose daemon is gone."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        async with super().open(spec) as sandbox:
            yield sandbox
        raise ConnectionError("no daemon")


async def test_a_sandbox_that_does_not_close_is_the_infrastructures(bench: Bench) -> None:
    runner = replace(await bench.runner(), sandbox=Sticky(bench.sandbox))
    rollout = await run_one(runner, bench.request(script="cp in out"))
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.score) == (FailureKind.CONNECTION, None)
    assert "no daemon" in rollout.failure.detail
    assert bench.verifier.calls == 0  # nothing says that the agent is gone


async def test_a_service_that_does_not_start_is_the_infrastructures(bench: Bench) -> None:
    broken = Service(name="db", command=("false",), health=("false",))
    request = bench.request(script="cp in out")
    request = replace(request, task=replace(request.task, services=(broken,)))
    done = await kind_and_score(run_one(await bench.runner(), request))
    assert done == (FailureKind.SANDBOX_START, None)


async def test_a_used_up_token_budget_is_the_policys_and_scored(bench: Bench) -> None:
    bench.limits = Limits(agent_s=30, wall_s=60, tokens=2)
    rollout = await bench.run(calls=3, script="cp in out")
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.reward) == (FailureKind.MAX_TOKENS, 1.0)
    assert sum(len(call.sampled_ids) for call in rollout.calls) == 2


async def test_a_cancel_leaves_no_process_and_no_rollout(bench: Bench) -> None:
    running = asyncio.create_task(bench.run(script="setsid sleep 4723 & sleep 4723"))
    while not alive("4723"):
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive("4723")
    assert bench.store.finished() == []
