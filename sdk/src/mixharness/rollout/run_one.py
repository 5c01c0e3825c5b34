"""THE main path: one attempt at one task in one harness, from an empty sandbox to a stored score.

Retries and order are scheduler.py's; each step below is one call into its own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from mixharness.errors import RolloutError
from mixharness.harness import Session
from mixharness.proxy.log import CALLS, note_superseded, read_calls
from mixharness.rollout.clock import RolloutClock
from mixharness.rollout.drive import drive
from mixharness.rollout.failures import Ending, Evidence, attribute, endpoint_redirect
from mixharness.rollout.grading import Grader
from mixharness.rollout.sandboxes import remains, task_sandbox
from mixharness.rollout.types import RolloutRequest, Runner
from mixharness.sandbox import Sandbox, Workspace
from mixharness.tree.prune import LOSING_CHAIN, SUPERSEDED, Pruning, prune
from mixharness.types import Failure, FailureKind, ModelCall, Rollout

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What the sandboxed part leaves: a rollout without a score, and the workspace if any."""

    rollout: Rollout
    workspace: Workspace | None = None


async def run_one(runner: Runner, request: RolloutRequest, attempt: int = 1) -> Rollout:
    """Run, settle, snapshot, release, grade, store; return the stored rollout.

    Everything that goes wrong in a part becomes the rollout's `failure`. Every sandbox, process
    and proxy session is gone before the verifier starts (rule 11), and on every other path too
    (rule 8).
    """
    runner.store.begin(request.id)
    left = await _sandboxed(runner, request)
    rollout = await Grader(runner=runner, request=request).grade(left.rollout, left.workspace)
    if rollout.failure is not None:
        failure = replace(rollout.failure, attempts=attempt)
        rollout = replace(rollout, failure=failure)
        log.warning("rollout_failed", rollout=rollout.id, kind=str(failure.kind))
    runner.store.save(rollout)
    return rollout


async def _sandboxed(runner: Runner, request: RolloutRequest) -> _Attempt:
    """Run the harness in a sandbox of its own; the sandbox is gone when this returns."""
    started, kind = RolloutClock(), FailureKind.SANDBOX_START
    try:
        async with task_sandbox(runner, request) as sandbox:
            kind = FailureKind.CONNECTION
            return await _recorded(runner, request, sandbox)
    except RolloutError as exc:
        failure = Failure(kind=kind, detail=str(exc))
    folder = runner.store.path(request.id)
    rollout = Rollout(
        id=request.id,
        key=request.key,
        calls=read_calls(folder) if (folder / CALLS).exists() else (),
        failure=failure,
        wall_s=started.wall_s,
        refill=request.refill,
    )
    return _Attempt(rollout=rollout)


async def _recorded(runner: Runner, request: RolloutRequest, sandbox: Sandbox) -> _Attempt:
    """Run the harness against a proxy session of its own, and collect what it left."""
    slot, clock = request.slot, RolloutClock()
    proxy = runner.proxy.open_session(
        rollout_id=request.id,
        harness=slot.harness,
        limits=request.limits,
        folder=runner.store.path(request.id),
        clock=clock,
    )
    try:
        session = Session(
            task=request.task,
            program=slot.program,
            sandbox=sandbox,
            base_url=proxy.base_url,
            secret=proxy.secret,
            limits=request.limits,
        )
        ending = await drive(slot.harness, session, clock)
        agent_s, wall_s = clock.agent_s, clock.wall_s
        left = await remains(runner, request, sandbox, proxy)
    finally:
        await proxy.close()
    if not left.settled:
        ending = Ending(out_of=FailureKind.SETTLE_TIMEOUT)
    calls = tuple(proxy.calls)
    note_superseded(runner.store.path(request.id), _superseded(calls))
    evidence = Evidence(
        ending=ending,
        calls=calls,
        notes=tuple(proxy.notes),
        redirect=endpoint_redirect(left.workspace) if left.workspace else None,
        limit=left.limit,
    )
    rollout = Rollout(
        id=request.id,
        key=request.key,
        calls=calls,
        failure=attribute(evidence) or left.failure,
        exit=ending.exit,
        agent_s=agent_s,
        wall_s=wall_s,
        late_exit=ending.late_exit,
        policy_version=next((call.versions[0].version for call in calls if call.versions), 0),
        program_version=slot.program.version if slot.program else "",
        refill=request.refill,
    )
    return _Attempt(rollout=rollout, workspace=left.workspace)


def _superseded(calls: Sequence[ModelCall]) -> dict[str, str]:
    """Return the calls on no live branch, with the reason; how many there are is the trainer's."""
    reasons = prune(calls, Pruning(max_regenerations=len(calls))).reasons
    return {call: why for call, why in reasons.items() if why in (SUPERSEDED, LOSING_CHAIN)}
