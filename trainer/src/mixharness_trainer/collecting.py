"""What each step trains on: its own groups, or with `max_staleness` the first that are complete.

When groups start, and which are too old, is ahead.py's; what one of them does, planned_group.py's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any, Protocol

from mixharness.optimizer import Optimizer
from mixharness.rollout.types import RolloutRequest
from mixharness.runs import Pair, Run, collect_once
from mixharness.types import FailureKind, Rollout
from mixharness_trainer.ahead import Ahead
from mixharness_trainer.ahead_journal import AheadJournal
from mixharness_trainer.groups import Grouped, group_rollouts
from mixharness_trainer.planned_group import PlannedGroup
from mixharness_trainer.resample import Collected, Resampling, collect_step
from mixharness_trainer.tables import TrainerTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The groups of a run, step by step."""

    run: Run
    optimizer: Optimizer[Any]
    plan: Sequence[Sequence[Pair]]
    """The pairs of each step, as many in every one; see `planned_steps`."""
    on_done: Callable[[Rollout], None]
    """Told of each rollout."""

    @property
    def settings(self) -> TrainerTable:
        """The run file's table."""
        return self.run.config.table("trainer")  # type: ignore[return-value]

    def grouped(self, rollouts: Sequence[Rollout]) -> Grouped:
        """Group rollouts of which no two groups have one key."""
        return group_rollouts(rollouts, self.optimizer.min_group_size, self.run.config.pruning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step trains on."""

    rollouts: Sequence[Rollout]
    grouped: Grouped
    figures: Mapping[str, Any] = field(default_factory=dict)
    """With `max_staleness`: `stale_groups` (dropped whole since the batch before), the same per
    harness, and `staleness/mean` and `staleness/max` of the groups that are trained on."""


class Collector(Protocol):
    """Hands out batches."""

    async def take(self, step: int) -> Batch:
        """Return what step number `step`, counted from 1, trains on."""


def planned_steps(settings: TrainerTable) -> int:
    """Return for how many steps pairs are wanted, those in the place of stale groups included.

    An update drops no more groups than a step has: none grows stale in fewer than
    `max_staleness + 1` updates, and that many steps' worth are open.
    """
    ahead = settings.max_staleness
    return 2 * settings.steps + ahead + 1 if ahead else settings.steps


@asynccontextmanager
async def collecting(wanted: Wanted) -> AsyncIterator[Collector]:
    """Collect inside the context; nothing runs any more at its end."""
    ahead_by = wanted.settings.max_staleness
    if not ahead_by or not wanted.plan:
        yield InStep(wanted)
        return
    run, journal = wanted.run, AheadJournal(wanted.run.run_dir)
    groups = _groups(wanted)
    taken, dropped = journal.done()
    for number in dropped:  # as far as the run was killed before it did so
        groups[number].discard(FailureKind.STALE)
    async with Ahead(
        (group for group in groups if group.number not in taken | dropped),
        per_step=len(wanted.plan[0]),
        max_staleness=ahead_by,
        version=lambda: run.engine.policy_version,
    ) as ahead:
        yield RunningAhead(wanted, groups, journal, ahead)


@dataclass(frozen=True, slots=True)
class InStep:
    """Collects a step's groups in that step, so that the weights they train sampled them."""

    wanted: Wanted

    async def take(self, step: int) -> Batch:
        """Run the step's groups to their end, and those drawn in their place."""
        wanted, run, settings = self.wanted, self.wanted.run, self.wanted.settings

        async def collect(pairs: Sequence[Pair], stage: str) -> Collected:
            rollouts = await collect_once(run, pairs, stage, settings.group_size, wanted.on_done)
            return rollouts, wanted.grouped(rollouts)

        resampling = Resampling(
            rounds=settings.resample_zero_variance,
            optimizer=wanted.optimizer,
            tasks=run.tasks["train"],
            seed=run.config.seed,
        )
        rollouts, grouped = await collect_step(
            resampling, wanted.plan[step - 1], _stage(step), collect
        )
        return Batch(rollouts=rollouts, grouped=grouped)


@dataclass(frozen=True, slots=True)
class RunningAhead:
    """Takes the first complete groups of those that run ahead, whichever step they were for.

    A mix of harnesses is kept over the steps, and not within one: slow ones come later.
    """

    wanted: Wanted
    groups: Sequence[PlannedGroup]
    journal: AheadJournal
    ahead: Ahead[PlannedGroup]

    async def take(self, step: int) -> Batch:
        """Wait for a step's worth of groups; a step that is taken again has those of before."""
        noted = self.journal.read(step)
        if noted is None:
            chosen, stale = await self.ahead.take()
            self.journal.note(step, chosen, stale)
        else:
            chosen = [self.groups[number] for number in noted.groups]
            stale = [self.groups[number] for number in noted.stale]
            for group in chosen:
                group.load(noted.groups[group.number])
        # Two groups of one pair stay two: each has a baseline of its own.
        parts = [self.wanted.grouped(group.rollouts) for group in chosen]
        dropped: Counter[str] = Counter()
        for part in parts:
            dropped.update(part.dropped)
        return Batch(
            rollouts=[rollout for group in chosen for rollout in group.rollouts],
            grouped=Grouped(tuple(chain(*(part.groups for part in parts))), dict(dropped)),
            figures=_figures(chosen, stale, self.wanted.run.engine.policy_version),
        )


def _groups(wanted: Wanted) -> list[PlannedGroup]:
    """Return the groups of all steps, numbered in the plan's order; none is started."""
    run, size = wanted.run, wanted.settings.group_size
    places = asyncio.Semaphore(run.config.rollout.concurrency)
    firsts = [
        RolloutRequest(task=task, slot=slot, sample=0, stage=_stage(step))
        for step, pairs in enumerate(wanted.plan, start=1)
        for task, slot in pairs
    ]
    return [
        PlannedGroup(
            runner=run.runner,
            pruning=run.config.pruning,
            number=number,
            first=first,
            size=size,
            places=places,
            on_done=wanted.on_done,
        )
        for number, first in enumerate(firsts)
    ]


def _figures(
    chosen: Sequence[PlannedGroup], stale: Sequence[PlannedGroup], version: int
) -> dict[str, Any]:
    oldest = [group.oldest_version for group in chosen]
    behind = [version - each for each in oldest if each is not None]
    dropped = Counter(f"stale_groups/{group.first.slot.label}" for group in stale)
    return {
        "stale_groups": len(stale),
        **dropped,
        "staleness/mean": fmean(behind) if behind else 0.0,
        "staleness/max": max(behind, default=0),
    }


def _stage(step: int) -> str:
    return f"step-{step:04d}"
