"""One group that runs ahead: what it samples, how old that is, what is noted if it is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import structlog

from mixharness.proxy.log import CALLS, read_calls
from mixharness.rollout.refill import collect_groups
from mixharness.rollout.store import ROLLOUT_FILE
from mixharness.rollout.types import RolloutRequest, Runner
from mixharness.tree import Pruning
from mixharness.types import Failure, FailureKind, ModelCall, Rollout

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True, eq=False)
class PlannedGroup:
    """A group of the plan; `ahead.Group`."""

    runner: Runner
    pruning: Pruning
    number: int
    """Its place in the plan, from 0."""
    first: RolloutRequest
    """Its sample 0; the others differ in the number only."""
    size: int
    places: asyncio.Semaphore
    """Limits the rollouts of all groups together."""
    on_done: Callable[[Rollout], None]
    rollouts: list[Rollout] = field(default_factory=list)
    """Those that are finished; when the group is complete, in order of the samples."""

    @property
    def oldest_version(self) -> int | None:
        """Oldest policy version among the tokens sampled so far; None before the first.

        All tokens of usable and of running rollouts count, those that pruning may leave out too:
        so a group is never younger than its kept tokens, and only grows older.
        """
        spans = (span for calls in self._calls() for call in calls for span in call.versions)
        return min((span.version for span in spans), default=None)

    async def collect(self) -> None:
        """Run all samples, refills included; finished ones come from the disk."""
        requests = [replace(self.first, sample=sample) for sample in range(self.size)]
        self.rollouts = await collect_groups(
            self.runner, requests, self.places, self._note, self.pruning
        )

    def load(self, names: Iterable[str]) -> None:
        """Take the rollouts from the disk, as they were when a step was taken before."""
        self.rollouts = [self.runner.store.load(name) for name in names]

    def discard(self, kind: FailureKind) -> None:
        """Give each of its rollouts on disk the failure, and keep what was sampled.

        Those that were excluded anyway keep the reason that they have.
        """
        stopped = [rollout for request in self._begun() if (rollout := self._stopped(request))]
        included = [rollout for rollout in stopped if rollout.usable or rollout.failure is None]
        for rollout in included:
            before = f"after {rollout.failure.kind}" if rollout.failure else ""
            self.runner.store.save(replace(rollout, failure=Failure(kind=kind, detail=before)))
        if included:
            task, harness = self.first.key.task_id, self.first.key.harness
            log.warning("group_dropped", reason=str(kind), task=task, harness=harness)

    def _note(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)
        self.on_done(rollout)

    def _calls(self) -> Iterator[tuple[ModelCall, ...]]:
        """Yield the calls of each rollout that loss and baseline may yet see."""
        finished = {rollout.id: rollout for rollout in self.rollouts}
        for request in self._begun():
            rollout = finished.get(request.id)
            if rollout is None:
                yield self.runner.proxy.calls_of(request.id)
            elif rollout.usable:
                yield rollout.calls

    def _begun(self) -> Iterator[RolloutRequest]:
        """Yield the requests that have a folder; refills go on with the numbers."""
        for sample in count():
            request = replace(self.first, sample=sample)
            if self.runner.store.path(request.id).exists():
                yield request
            elif sample >= self.size:
                return

    def _stopped(self, request: RolloutRequest) -> Rollout | None:
        """Return a rollout, or what is left of it; None when it did not begin to sample."""
        folder = self.runner.store.path(request.id)
        if (folder / ROLLOUT_FILE).exists():
            return self.runner.store.load(request.id)
        if not (folder / CALLS).exists():
            return None
        return Rollout(id=request.id, key=request.key, calls=read_calls(folder))
