"""Fresh grading with real sandboxes: what a grader sees, and whose fault it is when it fails."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.errors import SandboxError
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.grading import Grader
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.sandbox import ExecResult, Sandbox, SandboxSpec, Workspace
from mixharness.testing.doubles import EchoHarness, EchoHarnessConfig
from mixharness.types import FailureKind, Limits, Rollout, Score, Task
from mixharness.verifier import Verifier

pytestmark = pytest.mark.anyio


class ScriptScore(Verifier[ComponentConfig]):
    """Runs `grader/score.sh` in a fresh sandbox; its output is the score."""

    name = "script_score"

    def __init__(self, grader: Path, temporary: Path) -> None:
        super().__init__(ComponentConfig())
        self.grader = grader
        self.temporary = temporary
        self.outputs: list[str] = []
        self.others: list[int] = []
        self.swallows = False

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        self.others.append(len(list(self.temporary.iterdir())))
        try:
            async with workspace.sandbox({"grader": self.grader}) as sandbox:
                done = await sandbox.exec(["sh", "grader/score.sh"])
        except SandboxError:
            if self.swallows:
                return Score(value=0.0)
            raise
        self.outputs.append(done.stdout.decode())
        if done.exit_code:
            raise RuntimeError(f"score.sh ended with {done.exit_code}")
        return Score(value=float(done.stdout.split()[-1]))


class Backend(LocalSandboxBackend):
    """Does not open the first `down` times (`hangs`: takes for ever), and may die at a limit."""

    down = 0
    opens = 0
    hangs = False

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.opens += 1
        if self.opens <= self.down:
            await asyncio.sleep(1000 if self.hangs else 0)
            raise ConnectionError("no daemon")
        async with super().open(spec) as sandbox:
            run = sandbox.exec

            async def bombed(*args: Any, **kwargs: Any) -> ExecResult:
                if Path(sandbox.workspace, "bomb").exists():
                    raise SandboxError("no such container")
                return await run(*args, **kwargs)

            async def limit_hit() -> str:
                return "memory_mb"

            sandbox.exec, sandbox.limit_hit = bombed, limit_hit  # type: ignore[method-assign]
            yield sandbox


class Bench:
    """A grader over a workspace that a test fills."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        self.backend = Backend(LocalSandboxConfig())
        self.settings = RunnerSettings(backoff_s=0.01)
        self.task = Task(id="t", prompt="p", verifier="script_score")
        (folder / "grader").mkdir()
        self.verifier = ScriptScore(folder / "grader", temporary)
        self.script("echo 1")

    def script(self, text: str) -> None:
        (self.folder / "grader/score.sh").write_text(text)

    def runner(self, engine: ScriptedEngine) -> Runner:
        return Runner(
            proxy=Proxy(engine, ProxySettings()),
            sandbox=self.backend,
            verifiers={"script_score": self.verifier},
            store=RunStore(self.folder),
            settings=self.settings,
        )

    @property
    def request(self) -> RolloutRequest:
        slot = HarnessSlot(
            label="echo", harness=EchoHarness(EchoHarnessConfig()), program=None, limits=Limits()
        )
        return RolloutRequest(task=self.task, slot=slot, sample=0, stage="s")

    async def grade(self, **files: str) -> tuple[FailureKind | None, float | None]:
        """Grade a workspace that an agent left with these files."""
        runner = self.runner(ScriptedEngine(ScriptedConfig(turns=("fine",))))
        folder = runner.store.begin(self.request.id) / "workspace"
        folder.mkdir()
        for name, text in files.items():
            (folder / name.replace("__", "/")).parent.mkdir(exist_ok=True)
            (folder / name.replace("__", "/")).write_text(text)
        before = sorted(folder.rglob("*"))
        rollout = Rollout(id=self.request.id, key=self.request.key, calls=())
        grader = Grader(runner=runner, request=self.request)
        graded = await grader.grade(rollout, Workspace(folder))
        assert sorted(folder.rglob("*")) == before  # what is kept is what the agent left
        kind = graded.failure.kind if graded.failure else None
        return kind, graded.score.value if graded.score else None


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


@pytest.fixture
def bench(temporary: Path, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, temporary)
    yield bench
    assert list(temporary.iterdir()) == []


async def test_the_grader_gets_a_sandbox_of_its_own_when_the_agents_is_gone(bench: Bench) -> None:
    bench.script('ls; test "$(cat answer.txt)" = 4 && echo 1 || echo 0')
    engine = ScriptedEngine(ScriptedConfig(turns=("4",)))
    await engine.start()
    runner = bench.runner(engine)
    await runner.proxy.start()
    rollout = await run_one(runner, bench.request)
    await runner.proxy.stop()
    assert (rollout.failure, rollout.reward) == (None, 1.0)
    assert bench.verifier.others == [0]
    assert bench.verifier.outputs == ["answer.txt\ngrader\n1\n"]
    assert bench.backend.opens == 2


async def test_what_stands_where_the_grader_goes_is_replaced(bench: Bench) -> None:
    bench.script("ls grader; echo 0.5")
    planted = {"grader__score.sh": "echo 1", "grader__sitecustomize.py": "cheat()"}
    assert await bench.grade(**planted) == (None, 0.5)
    assert bench.verifier.outputs == ["score.sh\n0.5\n"]
    assert await bench.grade(grader="a file") == (None, 0.5)


async def test_no_grading_sees_what_an_earlier_one_did(bench: Bench) -> None:
    bench.script("test -e seen && echo 1 || echo 0; touch seen")
    assert [await bench.grade(), await bench.grade()] == [(None, 0.0)] * 2
    bench.script("ls | wc -l; touch seen; exit 3")
    await bench.grade()
    assert bench.verifier.outputs[2:] == ["1\n"] * 3  # twice on the snapshot, and the control


async def test_the_control_is_the_workspace_as_the_task_has_it(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/base").write_text("b")
    bench.task = replace(bench.task, folder=tmp_path / "given", files={"sub/in": "i"})
    bench.script("test -e poison && exit 3; cat base sub/in && echo && echo 1")
    done = await bench.grade(base="b", sub__in="i", poison="")
    assert done == (FailureKind.GRADER_BROKEN, 0.0)
    assert bench.verifier.outputs == ["", "", "bi\n1\n"]


async def test_a_grader_that_runs_too_long_on_this_workspace_only_is_the_policys(
    bench: Bench,
) -> None:
    bench.settings = RunnerSettings(grade_limit_s=1.0)
    bench.script("test -e huge && sleep 1000; echo 1")
    assert await bench.grade(huge="") == (FailureKind.GRADER_BROKEN, 0.0)
    assert await bench.grade() == (None, 1.0)


async def test_a_workspace_at_which_the_graders_sandbox_hits_a_limit_is_the_policys(
    bench: Bench,
) -> None:
    assert await bench.grade(bomb="") == (FailureKind.GRADER_BROKEN, 0.0)
    assert bench.backend.opens == 3


@pytest.mark.parametrize("down", [1, 2])
async def test_a_sandbox_that_does_not_open_is_tried_again(bench: Bench, down: int) -> None:
    bench.backend.down = down
    assert await bench.grade() == (None, 1.0)
    assert bench.backend.opens == down + 1


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_backend_that_is_down_is_never_the_policys(bench: Bench, swallows: bool) -> None:
    """It comes back just when the control would be graded, which would then speak against it."""
    bench.backend.down = 3
    bench.verifier.swallows = swallows
    assert await bench.grade() == (FailureKind.JUDGE_UNAVAILABLE, None)
    assert bench.backend.opens == 3


async def test_a_backend_that_goes_down_between_replay_and_control_is_never_the_policys(
    bench: Bench,
) -> None:
    bench.script("test -e poison && exit 3; echo 1")
    bench.verifier.swallows = False
    opens = iter([False, True, True, True])  # the replay's sandbox never opens

    @asynccontextmanager
    async def flaky(spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if next(opens):
            raise ConnectionError("no daemon")
        async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as sandbox:
            yield sandbox

    bench.backend.open = flaky  # type: ignore[method-assign, assignment]
    assert await bench.grade(poison="") == (FailureKind.JUDGE_UNAVAILABLE, None)


async def test_a_sandbox_that_hangs_when_it_opens_is_never_the_policys(bench: Bench) -> None:
    bench.settings = RunnerSettings(backoff_s=0.01, grade_limit_s=0.2)
    bench.backend.down, bench.backend.hangs = 3, True
    assert await bench.grade() == (FailureKind.JUDGE_UNAVAILABLE, None)
