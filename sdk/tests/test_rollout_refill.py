import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.engine import GenerateRequest, Generation
from mixharness.exclusions import exclusions
from mixharness.harness import Harness, Session
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.refill import collect_groups, kept
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.runs import load_set_aside
from mixharness.testing.doubles import (
    EchoHarness,
    EchoHarnessConfig,
    FixedVerifier,
    FixedVerifierConfig,
)
from mixharness.tree.prune import Pruning
from mixharness.types import FailureKind, GroupKey, HarnessExit, Limits, Rollout, Task

pytestmark = pytest.mark.anyio


class Failing(ScriptedEngine):
    """Fails the rollouts whose ids end as told, always, and notes whom it served."""

    fails: tuple[str, ...] = ()
    hangs: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(ScriptedConfig(turns=("fine",)))
        self.asked: list[str] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        self.asked.append(request.session_id)
        if request.session_id.endswith(self.hangs or ("nobody",)):
            await asyncio.sleep(1000)
        if request.session_id.endswith(self.fails or ("nobody",)):
            raise RuntimeError("out of memory")
        return await super().generate(request)


@pytest.fixture
def engine() -> Failing:
    return Failing()


@pytest.fixture
async def runner(engine: Failing, tmp_path: Path) -> AsyncIterator[Runner]:
    await engine.start()
    proxy = Proxy(engine, ProxySettings())
    await proxy.start()
    yield Runner(
        proxy=proxy,
        sandbox=LocalSandboxBackend(LocalSandboxConfig()),
        verifiers={"fixed": FixedVerifier(FixedVerifierConfig())},
        store=RunStore(tmp_path),
        settings=RunnerSettings(backoff_s=0.01, max_infra_retries=0, max_refills=2),
    )
    await proxy.stop()


def groups(samples: int = 2, turns: int = 1) -> list[RolloutRequest]:
    """Return two groups, of the harness labels `x` and `y`."""
    harness = EchoHarness(EchoHarnessConfig(turns=turns))
    task = Task(id="t", prompt="p", verifier="fixed")
    return [
        RolloutRequest(task=task, slot=slot, sample=sample, stage="s")
        for label in ("x", "y")
        for slot in [HarnessSlot(label=label, harness=harness, program=None, limits=Limits())]
        for sample in range(samples)
    ]


def names(rollouts: list[Rollout]) -> list[tuple[str, int, bool]]:
    return [(rollout.id, rollout.refill, rollout.usable) for rollout in rollouts]


async def test_a_group_is_filled_with_fresh_rollouts_beside_the_excluded_one(
    runner: Runner, engine: Failing
) -> None:
    engine.fails = ("x-1",)
    told: list[str] = []
    rollouts = await collect_groups(runner, groups(), 2, lambda r: told.append(r.id))
    assert names(rollouts) == [
        ("s-t-x-0", 0, True),
        ("s-t-x-1", 0, False),
        ("s-t-x-2", 1, True),
        ("s-t-y-0", 0, True),
        ("s-t-y-1", 0, True),
    ]
    assert sorted(told) == sorted(rollout.id for rollout in rollouts)
    assert runner.store.load("s-t-x-2") == rollouts[2]


async def test_filling_ends_after_the_last_round(runner: Runner, engine: Failing) -> None:
    engine.fails = ("x-0", "x-1", "x-3", "x-4")
    rollouts = await collect_groups(runner, groups(), 2)
    assert names(rollouts)[:5] == [
        ("s-t-x-0", 0, False),
        ("s-t-x-1", 0, False),
        ("s-t-x-2", 1, True),
        ("s-t-x-3", 1, False),
        ("s-t-x-4", 2, False),
    ]
    assert len(rollouts) == 7


async def test_a_round_without_a_usable_rollout_is_the_last(
    runner: Runner, engine: Failing
) -> None:
    engine.fails = ("x-1", "x-2")
    assert len(await collect_groups(runner, groups(), 2)) == 5
    engine.fails = ("-0", "-1")
    assert len(await collect_groups(runner, [replace(r, stage="t") for r in groups()], 2)) == 4


async def test_no_refills_where_none_are_wanted(runner: Runner, engine: Failing) -> None:
    engine.fails = ("x-1",)
    runner = replace(runner, settings=replace(runner.settings, max_refills=0))
    assert len(await collect_groups(runner, groups(), 2)) == 4


async def test_a_killed_run_goes_on_with_the_same_refills(runner: Runner, engine: Failing) -> None:
    """What failed before a refill was begun is not tried again: the group would grow too large."""
    engine.fails, engine.hangs = ("x-0", "x-1"), ("x-3",)
    running = asyncio.create_task(collect_groups(runner, groups(), 4))
    while "s-t-x-2" not in runner.store.finished() or "s-t-x-3" not in engine.asked:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    engine.fails = engine.hangs = ()
    engine.asked.clear()
    rollouts = await collect_groups(runner, groups(), 4)
    assert engine.asked == ["s-t-x-3"]
    assert [(name, refill) for name, refill, usable in names(rollouts) if usable] == [
        ("s-t-x-2", 1),
        ("s-t-x-3", 1),
        ("s-t-y-0", 0),
        ("s-t-y-1", 0),
    ]
    assert await collect_groups(runner, groups(), 4) == rollouts


async def test_without_refills_on_disk_what_failed_is_tried_again(
    runner: Runner, engine: Failing
) -> None:
    engine.fails = ("x-0",)
    unfilled = replace(runner, settings=replace(runner.settings, max_refills=0))
    await collect_groups(unfilled, groups(), 4)
    engine.fails = ()
    rollouts = await collect_groups(runner, groups(), 4)
    assert [usable for _, _, usable in names(rollouts)] == [True] * 4


class Restless(Harness[ComponentConfig]):
    """Samples its first answer three times and goes on from the last."""

    name = "restless"
    dialects = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        url = f"{session.base_url}/v1/chat/completions"
        headers = {"authorization": f"Bearer {session.secret}"}
        messages = [{"role": "user", "content": "p"}]
        async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
            for limit in (50, 51, 52):
                body = {"messages": messages, "max_tokens": limit}
                answer = (await client.post(url, json=body)).json()["choices"][0]["message"]
            more = [*messages, answer, {"role": "user", "content": "Go on."}]
            await client.post(url, json={"messages": more})
        return HarnessExit(exit_code=0)


async def test_what_pruning_drops_is_replaced_too(runner: Runner) -> None:
    x, y = groups(1)
    x = replace(x, slot=replace(x.slot, harness=Restless(ComponentConfig())))
    rollouts = await collect_groups(runner, [x, y], 1)
    assert [(each.usable, len(each.calls)) for each in rollouts] == [(True, 4), (True, 1)]
    strict = Pruning(max_regenerations=1)
    rollouts = await collect_groups(runner, [x, y], 1, pruning=strict)
    assert [each.refill for each in rollouts] == [0, 1, 0]  # the refill is no better
    assert [kept(each, strict) for each in rollouts] == [False, False, True]
    assert exclusions(rollouts, pruning=strict)["x"].excluded.reward == 1.0


async def test_kept_and_excluded_are_compared(
    runner: Runner, engine: Failing, tmp_path: Path
) -> None:
    engine.fails = ("x-1",)
    runner = replace(runner, settings=replace(runner.settings, max_infra_retries=1))
    rollouts = await collect_groups(runner, groups(turns=2), 2)
    found = exclusions(rollouts, load_set_aside(tmp_path))
    assert list(found) == ["x", "y"]
    assert (found["x"].refilled, found["x"].retried) == (1, 1)
    assert (found["x"].kept.rollouts, found["x"].kept.reward, found["x"].kept.calls) == (2, 1.0, 2)
    assert found["x"].kept.tokens == found["y"].kept.tokens > 0
    excluded = found["x"].excluded  # the last attempt, and the one that was repeated
    assert (excluded.rollouts, excluded.reward, excluded.tokens) == (2, None, 0.0)
    assert (found["y"].excluded.rollouts, found["y"].excluded.calls) == (0, None)
    failure = rollouts[1].failure
    assert failure is not None
    assert (rollouts[1].key, failure.kind) == (GroupKey("t", "x"), FailureKind.ENGINE_ERROR)
