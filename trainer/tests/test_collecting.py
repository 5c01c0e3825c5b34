"""What steps train on, with a real harness, proxy and sandbox; the engine waits when told."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mixharness.assemble import build
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.config import load_run_file
from mixharness.plugins import load_plugins
from mixharness.rollout.store import ROLLOUT_FILE, RunStore
from mixharness.runs import collect_pairs, open_run
from mixharness.types import FailureClass, FailureKind
from mixharness_trainer.collecting import Wanted, collecting, planned_steps
from mixharness_trainer.composition import step_pairs

pytestmark = pytest.mark.anyio

RUN = """
seed = 3
[[harness]]
name = "agentloop"
tools = ["bash"]
[[task_source]]
name = "jsonl"
path = "{tasks}"
[engine]
name = "scripted"
turns = ["Done."]
[optimizer]
name = "sft"
[trainer]
steps = 4
tasks_per_step = 2
group_size = 2
max_staleness = {max_staleness}
"""
LOOK = '<tool_call>\n{"name": "bash", "arguments": {"command": "true"}}\n</tool_call>'


class Waiting(ScriptedEngine):
    """Plays two turns; where told, the second one never comes. Notes whom it served."""

    def __init__(self):
        super().__init__(ScriptedConfig(turns=(LOOK, "Done.")))
        self.hangs, self.served, self.in_flight = "nobody", [], 0

    async def generate(self, request):
        again = request.session_id in self.served
        self.served.append(request.session_id)
        self.in_flight += 1
        try:
            if again and self.hangs in request.session_id:
                await asyncio.Event().wait()
            return await super().generate(request)
        finally:
            self.in_flight -= 1


class Bench:
    """A run folder that is opened as often as wanted."""

    def __init__(self, folder):
        self.folder, self.registry = folder, load_plugins()
        lines = [{"id": f"t{n}", "prompt": "Look.", "answer": {"text": ""}} for n in range(6)]
        (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
        self.told = []

    def open(self, engine, max_staleness, run_dir="run"):
        file = self.folder / "run.toml"
        file.write_text(RUN.format(tasks=self.folder / "tasks.jsonl", max_staleness=max_staleness))
        config = load_run_file(file, self.registry)
        return open_run(config, self.registry, self.folder / run_dir, engine)

    def wanted(self, run):
        settings = run.config.table("trainer")
        plan = step_pairs(
            run.tasks["train"],
            run.slots,
            size=settings.tasks_per_step,
            steps=planned_steps(settings),
            seed=run.config.seed,
        )
        optimizer = build(run.config.optimizer, self.registry)
        return Wanted(run=run, optimizer=optimizer, plan=list(plan), on_done=self.told.append)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


async def publish(run, version):
    async with run.proxy.gate.closed():
        await run.engine.load_weights(Path(), version)


def versions(batch):
    spans = [s for r in batch.rollouts for call in r.calls for s in call.versions]
    return {span.version for span in spans}


def group_of(request_id):
    return request_id.rpartition("-")[0]


async def test_without_staleness_a_step_is_what_collecting_its_pairs_gives(bench):
    async with bench.open(Waiting(), 0) as run, bench.open(Waiting(), 0, "other") as other:
        wanted = bench.wanted(run)
        async with collecting(wanted) as collector:
            for step in (1, 2):
                batch = await collector.take(step)
                pairs, stage = bench.wanted(other).plan[step - 1], f"step-000{step}"
                rollouts = await collect_pairs(other, pairs, stage, 2)
                assert [r.id for r in batch.rollouts] == [r.id for r in rollouts]
                assert [r.calls[-1].sampled_ids for r in batch.rollouts] == [
                    r.calls[-1].sampled_ids for r in rollouts
                ]
                assert [g.key for g in batch.grouped.groups] == [
                    rollouts[0].key,
                    rollouts[2].key,
                ]
                assert (batch.figures, versions(batch)) == ({}, {step - 1})
                for each in (run, other):
                    await publish(each, step)
        assert len(run.engine.served) == 2 * 2 * 2 * 2  # nothing of a step that was not asked for


async def test_a_hanging_rollout_blocks_no_step_and_its_group_is_dropped_whole(bench):
    engine = Waiting()
    async with bench.open(engine, 1) as run:
        wanted = bench.wanted(run)
        task, slot = wanted.plan[0][0]
        engine.hangs = f"step-0001-{task.id}-{slot.label}-1"
        batches = []
        async with asyncio.timeout(60), collecting(wanted) as collector:
            for step in (1, 2, 3):
                batches.append(await collector.take(step))
                await publish_despite(run, engine, step)
            async with asyncio.timeout(10):  # it is told to stop, and nobody waits for it
                while engine.in_flight:
                    await asyncio.sleep(0.01)
        assert [len(batch.grouped.groups) for batch in batches] == [2, 2, 2]
        trained = {group_of(r.id) for batch in batches for r in batch.rollouts}
        assert len(trained) == 6
        assert group_of(engine.hangs) not in trained
        assert [batch.figures["stale_groups"] for batch in batches] == [0, 0, 1]
        assert batches[2].figures["stale_groups/agentloop"] == 1
        assert max(batch.figures["staleness/max"] for batch in batches) <= 1
        for step, batch in enumerate(batches, start=1):
            assert min(versions(batch)) >= step - 1 - 1
        store = RunStore(bench.folder / "run")
        dropped = [store.load(f"{group_of(engine.hangs)}-{sample}") for sample in (0, 1)]
        assert [r.failure.kind for r in dropped] == [FailureKind.STALE] * 2
        assert [r.failure.failure_class for r in dropped] == [FailureClass.RUN] * 2
        # What was sampled is kept.
        sampled = [[bool(call.sampled_ids) for call in r.calls] for r in dropped]
        assert sampled == [[True, True], [True, False]]
        assert not any(r.usable for r in dropped)
    # As it is after a kill between the journal and the rollouts.
    store.save(replace(dropped[0], failure=None))
    (store.path(dropped[1].id) / ROLLOUT_FILE).unlink()
    async with bench.open(engine, 1) as run, collecting(bench.wanted(run)):
        assert [store.load(r.id) for r in dropped] == dropped


async def publish_despite(run, engine, version):
    """Let the weights go on although a request never ends, as an engine that pauses them can."""
    async with run.proxy.gate.closed(drain=False):
        await engine.load_weights(Path(), version)


async def test_what_is_left_at_the_end_is_noted_and_nothing_runs(bench):
    engine, here = Waiting(), psutil.Process()
    engine.hangs = "step-0002"
    async with bench.open(engine, 2) as run:
        before = {child.pid for child in here.children(recursive=True)}
        async with collecting(bench.wanted(run)) as collector:
            batch = await collector.take(1)
            while not engine.in_flight:
                await asyncio.sleep(0.01)
            assert {child.pid for child in here.children(recursive=True)} - before
        assert engine.in_flight == 0
        assert {child.pid for child in here.children(recursive=True)} <= before
    store = RunStore(bench.folder / "run")
    left = [store.load(name) for name in store.finished() if "step-0002" in name]
    assert len(left) == 4
    assert {rollout.failure.kind for rollout in left} == {FailureKind.CANCELLED}
    assert all(store.load(rollout.id).failure is None for rollout in batch.rollouts)


async def test_a_resumed_run_takes_its_steps_again_and_goes_on_with_the_rest(bench):
    batches = []

    async def killed():
        async with bench.open(Waiting(), 1) as run, collecting(bench.wanted(run)) as collector:
            batches.append(await collector.take(1))
            await publish(run, 1)
            batches.append(await collector.take(2))
            raise RuntimeError("killed before step 2 was saved")

    with pytest.raises(RuntimeError, match="killed"):
        await killed()
    engine = Waiting()
    async with bench.open(engine, 1) as run, collecting(bench.wanted(run)) as collector:
        await publish(run, 1)
        assert await collector.take(2) == batches[1]
        assert engine.served == []
        await publish(run, 2)
        batches.append(await collector.take(3))
    taken = [{group_of(r.id) for r in batch.rollouts} for batch in batches]
    assert [len(each) for each in taken] == [2, 2, 2]
    assert len(set.union(*taken)) == 6
