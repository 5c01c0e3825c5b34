"""Filling groups again: fresh rollouts in place of those that ended excluded.

One rollout's retries are scheduler.py's; dropping what stays too small is the trainer's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from mixharness.rollout.scheduler import collect
from mixharness.rollout.types import RolloutRequest, Runner
from mixharness.tree.prune import DEFAULT_PRUNING, Pruning, prune
from mixharness.types import GroupKey, Rollout

log = structlog.get_logger()


async def collect_groups(
    runner: Runner,
    requests: Sequence[RolloutRequest],
    concurrency: int | asyncio.Semaphore,
    on_done: Callable[[Rollout], None] | None = None,
    pruning: Pruning = DEFAULT_PRUNING,
) -> list[Rollout]:
    """Run all requests, then fresh ones for each that is excluded, for `max_refills` rounds.

    Refills go on with their group's sample numbers, so a killed run resumes with the same ones.
    They come beside the excluded rollouts, which stay: nothing is ever chosen among more usable
    rollouts than were asked for (TOKENS_AND_TREES section 5). A round of which nothing is usable,
    as when the engine is dead, is the last.

    Args:
        runner: the parts of the run.
        requests: whole groups; all of one stage.
        concurrency: most rollouts at a time; a semaphore counts those of other calls too.
        on_done: told of each rollout, refills included.
        pruning: the run's; it drops rollouts too.

    Returns:
        The rollouts, each group's refills last, groups in the order of the requests.

    Raises:
        ConfigError: see `collect`.
    """
    asked: dict[GroupKey, list[RolloutRequest]] = defaultdict(list)
    for request in requests:
        asked[request.key].append(request)
    done: dict[GroupKey, list[Rollout]] = {key: [] for key in asked}
    batch = list(requests)
    for number in range(1, runner.settings.max_refills + 2):
        settled = _settled(runner, asked)
        rollouts = await collect(runner, batch, concurrency, on_done, settled)
        for rollout in rollouts:
            done[rollout.key].append(rollout)
        batch = []
        # Where all of a round was excluded nothing works, and refills would be excluded, too.
        if number <= runner.settings.max_refills and any(kept(r, pruning) for r in rollouts):
            batch = [r for key in asked for r in _missing(asked[key], done[key], number, pruning)]
        if not batch:
            break
        log.warning("groups_refilled", rollouts=len(batch), round=number)
        for request in batch:
            asked[request.key].append(request)
    return [rollout for rollouts in done.values() for rollout in rollouts]


def kept(rollout: Rollout, pruning: Pruning = DEFAULT_PRUNING) -> bool:
    """Say whether loss and baseline see a rollout: it is usable, and pruning does not drop it."""
    return rollout.usable and prune(rollout.calls, pruning).failure is None


def _missing(
    asked: Sequence[RolloutRequest], done: Iterable[Rollout], number: int, pruning: Pruning
) -> list[RolloutRequest]:
    """Return what a group lacks, under the sample numbers after its last."""
    size = sum(1 for request in asked if not request.refill)
    lacking = size - sum(kept(rollout, pruning) for rollout in done)
    start = max(request.sample for request in asked) + 1
    return [replace(asked[0], sample=start + i, refill=number) for i in range(lacking)]


def _settled(runner: Runner, asked: dict[GroupKey, list[RolloutRequest]]) -> frozenset[GroupKey]:
    """Return the groups whose refills were begun before: what failed there is not run again."""
    last = {key: max(requests, key=lambda each: each.sample) for key, requests in asked.items()}
    return frozenset(
        key
        for key, request in last.items()
        if runner.store.path(replace(request, sample=request.sample + 1).id).exists()
    )
