"""Running a harness under its two clocks, and waiting until its records are complete."""

from __future__ import annotations

import asyncio
import time

from mixharness.errors import HarnessError, boundary
from mixharness.harness import Harness, Session
from mixharness.proxy.session import ProxySession
from mixharness.rollout.clock import RolloutClock
from mixharness.rollout.failures import Ending
from mixharness.rollout.types import RunnerSettings
from mixharness.sandbox import Sandbox
from mixharness.types import FailureKind, HarnessExit, Limits

CANCEL_LIMIT_S = 5.0
LONGEST_WAIT_S, SHORTEST_WAIT_S = 1.0, 0.05


async def drive(harness: Harness, session: Session, clock: RolloutClock) -> Ending:  # type: ignore[type-arg]
    """Run the harness to its end, or until a clock runs out.

    Agent seconds that are over are the policy's fault, wall seconds the infrastructure's. Does not
    raise what the harness raises; a cancel passes through when the harness has been stopped.
    """
    running = asyncio.create_task(_run(harness, session))
    try:
        while not running.done():
            out_of, wait_s = _time_left(clock, session.limits)
            if out_of is not None:
                return Ending(out_of=out_of)
            await asyncio.wait({running}, timeout=wait_s)
        try:
            return Ending(exit=running.result())
        except asyncio.CancelledError:  # not ours: a cancel of ours is raised by the wait above
            return Ending(error=HarnessError(f"harness {harness.name!r} cancelled itself"))
        except Exception as exc:
            return Ending(error=exc)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=CANCEL_LIMIT_S)


async def _run(harness: Harness, session: Session) -> HarnessExit:  # type: ignore[type-arg]
    with boundary(HarnessError, f"harness {harness.name!r}"):
        return await harness.run(session)


def _time_left(clock: RolloutClock, limits: Limits) -> tuple[FailureKind | None, float]:
    """Return the clock that ran out, if any, and how long to wait before looking again."""
    agent_s, wall_s = limits.agent_s - clock.agent_s, limits.wall_s - clock.wall_s
    if wall_s <= 0:
        return FailureKind.WALL_CLOCK, 0.0
    if agent_s <= 0:
        return FailureKind.AGENT_TIMEOUT, 0.0
    # A standing agent clock brings its end no nearer: look now and then, never spin.
    return None, max(SHORTEST_WAIT_S, min(agent_s, wall_s, LONGEST_WAIT_S))


async def settle(proxy: ProxySession, sandbox: Sandbox, settings: RunnerSettings) -> bool:
    """Kill what is left and wait until the records rest (TOKENS_AND_TREES section 2).

    They rest when their number is unchanged over several looks, nothing is pending and no process
    is alive. Returns False when the limit of its own ran out first.
    """
    await sandbox.kill()
    before, equal = -1, 0
    ends = time.monotonic() + settings.settle_limit_s
    while time.monotonic() < ends:
        now = len(proxy.calls)
        quiet = now == before and not proxy.pending and not await sandbox.processes()
        equal, before = (equal + 1 if quiet else 0), now
        if equal == settings.settle_checks:
            return True
        await asyncio.sleep(settings.settle_interval_s)
    return False
