"""Groups collected ahead of the step that trains on them. What one of them does: planned_group.py.

Source: how far ahead follows AReaL (arXiv:2505.24298, staleness control), in groups; which are too
old is TOKENS_AND_TREES section 5, "Staleness".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import structlog

from mixharness.types import FailureKind

log = structlog.get_logger()


class Group(Protocol):
    """What is collected, dropped and trained on as a whole."""

    @property
    def oldest_version(self) -> int | None:
        """Oldest policy version that sampled any token so far; None before the first."""

    async def collect(self) -> None:
        """Run to the end; a cancel stops everything that it started."""

    def discard(self, kind: FailureKind) -> None:
        """Note that it is not trained on, and why. Nothing of it runs any more."""


GroupT = TypeVar("GroupT", bound=Group)


class Ahead(Generic[GroupT]):
    """Runs groups in the order of a plan, and hands out those that are complete.

    A group is open from its start until the update on it is done. At most `max_staleness + 1`
    steps' worth are open, so a plan that is trained on in its own order never grows stale. Leaving
    the context stops what still runs.

    Args:
        plan: the groups, not started; infinite or longer than what the run will train on, as stale
            ones are replaced by the next.
        per_step: groups that make a step.
        max_staleness: most updates between the weights that sampled a token and those it trains.
        version: number of the weights that sample now; it changes between two `take`s only.
    """

    def __init__(
        self,
        plan: Iterator[GroupT],
        *,
        per_step: int,
        max_staleness: int,
        version: Callable[[], int],
    ) -> None:
        self._plan, self._per_step = plan, per_step
        self._max_staleness, self._version = max_staleness, version
        self._open: dict[GroupT, asyncio.Task[None]] = {}
        self._leaving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Ahead[GroupT]:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: object, traceback: TracebackType | None
    ) -> None:
        leftover = dict(self._open)
        for task in leftover.values():
            task.cancel()
        await asyncio.gather(*leftover.values(), *self._leaving, return_exceptions=True)
        if exc_type is None:  # else the run is resumed, and may still use what is finished
            for group in leftover:
                group.discard(FailureKind.CANCELLED)

    async def take(self) -> tuple[list[GroupT], list[GroupT]]:
        """Return the first step's worth of complete groups, and those that grew stale meanwhile.

        Whoever calls has published the update on the groups of the call before. Of more complete
        groups than a step needs the earliest planned come first. Fewer are returned only when the
        plan is used up.

        Raises:
            Exception: what a group's `collect` raised.
        """
        stale: list[GroupT] = []
        while True:
            stale += self._drop_stale()
            self._start()
            running = [task for task in self._open.values() if not task.done()]
            complete = [group for group, task in self._open.items() if _complete(task)]
            if len(complete) >= self._per_step or not running:
                break
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        chosen = complete[: self._per_step]
        for group in chosen:
            del self._open[group]
        return chosen, stale

    def _start(self) -> None:
        """Start the next groups of the plan; those just trained on made room for them."""
        room = (self._max_staleness + 1) * self._per_step - len(self._open)
        for _, group in zip(range(room), self._plan, strict=False):
            self._open[group] = asyncio.create_task(group.collect())

    def _drop_stale(self) -> list[GroupT]:
        """Drop each group that is too old, running or complete: it can only grow older."""
        allowed = self._version() - self._max_staleness
        ages = {group: group.oldest_version for group in self._open}
        stale = [group for group, oldest in ages.items() if oldest is not None and oldest < allowed]
        for group in stale:
            # A harness may take seconds to stop; nobody waits for it.
            self._leaving.append(asyncio.create_task(_leave(group, self._open.pop(group))))
        return stale


async def _leave(group: Group, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    group.discard(FailureKind.STALE)


def _complete(task: asyncio.Task[None]) -> bool:
    if task.done():
        task.result()
    return task.done()
