"""Many rollouts at a time: order, retries, resuming. One rollout is run_one.py's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Sequence

import structlog

from mixharness.errors import ConfigError
from mixharness.rollout.run_one import run_one
from mixharness.rollout.types import RolloutRequest, Runner
from mixharness.types import FailureClass, GroupKey, Rollout

log = structlog.get_logger()


async def collect(
    runner: Runner,
    requests: Sequence[RolloutRequest],
    concurrency: int | asyncio.Semaphore,
    on_done: Callable[[Rollout], None] | None = None,
    settled: Container[GroupKey] = (),
) -> list[Rollout]:
    """Run all requests, at most `concurrency` at a time; return rollouts in request order.

    Those already on disk are loaded, so a killed run goes on where it was (rule 10); what ended
    with an infrastructure failure is run anew, but not in a `settled` group. Each rollout is on
    disk before `on_done` sees it. A cancel stops all and releases every sandbox. A semaphore in
    place of a number counts the rollouts of other calls too: first come, first served.

    Raises:
        ConfigError: a task names a verifier that the run does not have, or two requests have one
            id; nothing was started.
    """
    _check(runner, requests)
    places = asyncio.Semaphore(concurrency) if isinstance(concurrency, int) else concurrency

    async def work(request: RolloutRequest) -> Rollout:
        async with places:
            stored = _stored(runner, request, request.key in settled)
            rollout = stored or await _finish(runner, request)
            if on_done is not None:
                on_done(rollout)
            return rollout

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(request)) for request in requests]
    return [task.result() for task in tasks]


async def _finish(runner: Runner, request: RolloutRequest) -> Rollout:
    """Run a rollout until it ends without an infrastructure failure, or tries are used up."""
    settings = runner.settings
    for attempt in range(1, settings.max_infra_retries + 2):
        rollout = await run_one(runner, request, attempt)
        if not _infra(rollout) or attempt > settings.max_infra_retries:
            return rollout
        await asyncio.sleep(settings.backoff_s * 2 ** (attempt - 1))
    raise AssertionError("unreachable: the last attempt always returns")


def _stored(runner: Runner, request: RolloutRequest, settled: bool) -> Rollout | None:
    try:
        rollout = runner.store.load(request.id)
    except FileNotFoundError:
        return None
    return rollout if settled or not _infra(rollout) else None


def _infra(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.failure_class is FailureClass.INFRA


def _check(runner: Runner, requests: Sequence[RolloutRequest]) -> None:
    known = ", ".join(sorted(runner.verifiers)) or "none"
    problems = {
        (f"task {request.task.id}", f"no verifier {request.task.verifier!r}; the run has: {known}")
        for request in requests
        if request.task.verifier not in runner.verifiers
    }
    ids = Counter(request.id for request in requests)
    twice = {(f"rollout {name}", "asked for twice") for name, times in ids.items() if times > 1}
    if problems or twice:
        raise ConfigError("the rollouts asked for", sorted(problems | twice))
