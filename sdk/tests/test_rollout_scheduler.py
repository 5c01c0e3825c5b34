import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.engine import GenerateRequest, Generation
from mixharness.errors import ConfigError
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.scheduler import collect
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.testing.doubles import (
    EchoHarness,
    EchoHarnessConfig,
    FixedVerifier,
    FixedVerifierConfig,
)
from mixharness.types import Failure, FailureKind, Limits, Rollout, Task

pytestmark = pytest.mark.anyio


class Moody(ScriptedEngine):
    """Is slow for early samples, raises `failing` times, and counts who is being served."""

    failing = 0
    served = 0
    most = 0
    now = 0
    hang: str = ""

    async def generate(self, request: GenerateRequest) -> Generation:
        self.served += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.hang and self.hang in request.session_id:
                await asyncio.sleep(1000)
            await asyncio.sleep(0.2 if request.session_id.endswith("-0") else 0.0)
        finally:
            self.now -= 1
        if self.served <= self.failing:
            raise RuntimeError("out of memory")
        return await super().generate(request)


@pytest.fixture
def engine() -> Moody:
    return Moody(ScriptedConfig(turns=("fine",)))


@pytest.fixture
async def runner(engine: Moody, tmp_path: Path) -> AsyncIterator[Runner]:
    await engine.start()
    proxy = Proxy(engine, ProxySettings())
    await proxy.start()
    yield Runner(
        proxy=proxy,
        sandbox=LocalSandboxBackend(LocalSandboxConfig()),
        verifiers={"fixed": FixedVerifier(FixedVerifierConfig())},
        store=RunStore(tmp_path),
        settings=RunnerSettings(backoff_s=0.01),
    )
    await proxy.stop()


def requests(count: int, verifier: str = "fixed") -> list[RolloutRequest]:
    slot = HarnessSlot(
        label="echo", harness=EchoHarness(EchoHarnessConfig()), program=None, limits=Limits()
    )
    task = Task(id="t", prompt="p", verifier=verifier)
    return [RolloutRequest(task=task, slot=slot, sample=i, stage="s") for i in range(count)]


async def test_rollouts_come_in_request_order_and_are_on_disk_before_they_are_reported(
    runner: Runner, engine: Moody
) -> None:
    reported: list[str] = []

    def on_done(rollout: Rollout) -> None:
        assert rollout.id in runner.store.finished()
        reported.append(rollout.id)

    rollouts = await collect(runner, requests(4), 2, on_done)
    ids = [f"s-t-echo-{sample}" for sample in range(4)]
    assert [rollout.id for rollout in rollouts] == ids
    assert sorted(reported) == ids
    assert reported[0] != ids[0]  # the slow one was overtaken
    assert engine.most <= 2


async def test_an_infrastructure_failure_is_tried_again(runner: Runner, engine: Moody) -> None:
    engine.failing = 2
    (rollout,) = await collect(runner, requests(1), 1)
    assert (rollout.failure, rollout.reward, engine.served) == (None, 1.0, 3)
    assert (runner.store.folder / "s-t-echo-0~2").is_dir()


async def test_the_last_attempt_is_kept_as_a_failure(runner: Runner, engine: Moody) -> None:
    engine.failing = 1000
    (rollout,) = await collect(runner, requests(1), 1)
    detail = "engine scripted: RuntimeError: out of memory"
    assert rollout.failure == Failure(kind=FailureKind.ENGINE_ERROR, detail=detail, attempts=3)
    assert not rollout.usable
    assert runner.store.load(rollout.id) == rollout


async def test_what_is_on_disk_is_not_run_again(runner: Runner, engine: Moody) -> None:
    first = await collect(runner, requests(2), 2)
    again = await collect(runner, requests(3), 2)
    assert again[:2] == first
    assert engine.served == 3


async def test_a_missing_verifier_is_said_before_anything_starts(
    runner: Runner, engine: Moody
) -> None:
    with pytest.raises(ConfigError, match="no verifier 'fixd'; the run has: fixed"):
        await collect(runner, requests(1, "fixd"), 1)
    with pytest.raises(ConfigError, match="asked for twice"):
        await collect(runner, requests(1) * 2, 1)
    assert engine.served == 0


async def test_a_cancel_leaves_the_finished_ones_and_no_sandbox(
    runner: Runner, engine: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hang = "echo-2"
    with tempfile.TemporaryDirectory(prefix="mixharness-test-") as folder:
        Path(folder).chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        running = asyncio.create_task(collect(runner, requests(3), 3))
        while len(runner.store.finished()) < 2:
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert list(Path(folder).iterdir()) == []
    assert runner.store.finished() == ["s-t-echo-0", "s-t-echo-1"]
    assert engine.now == 0
