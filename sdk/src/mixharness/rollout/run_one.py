"""THE main path: one attempt at one task in one harness, from an empty sandbox to a stored score.

Retries and order are scheduler.py's; each step below is one call into its own file.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from mixharness.errors import RolloutError, SandboxError, boundary
from mixharness.harness import Session
from mixharness.proxy.log import note_superseded
from mixharness.rollout.clock import RolloutClock
from mixharness.rollout.drive import drive, settle
from mixharness.rollout.failures import Ending, Evidence, attribute, endpoint_redirect
from mixharness.rollout.grading import Grader
from mixharness.rollout.types import RolloutRequest, Runner
from mixharness.sandbox import Sandbox, SandboxSpec, Workspace
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
    rollout = await Grader(runner=runner, task=request.task).grade(left.rollout, left.workspace)
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
        async with _open_sandbox(runner, request) as sandbox:
            kind = FailureKind.CONNECTION
            return await _recorded(runner, request, sandbox)
    except RolloutError as exc:
        failure = Failure(kind=kind, detail=str(exc))
    rollout = Rollout(
        id=request.id, key=request.key, calls=(), failure=failure, wall_s=started.wall_s
    )
    return _Attempt(rollout=rollout)


@asynccontextmanager
async def _open_sandbox(runner: Runner, request: RolloutRequest) -> AsyncIterator[Sandbox]:
    slot = request.slot
    spec = SandboxSpec(
        rollout_id=request.id,
        files=request.task.files,
        limits=slot.limits,
        program_path=slot.program.path if slot.program else None,
    )
    async with AsyncExitStack() as stack:
        with boundary(SandboxError, f"sandbox {runner.sandbox.name!r}"):
            sandbox = await stack.enter_async_context(runner.sandbox.open(spec))
        yield sandbox


async def _recorded(runner: Runner, request: RolloutRequest, sandbox: Sandbox) -> _Attempt:
    """Run the harness against a proxy session of its own, and collect what it left."""
    slot, clock = request.slot, RolloutClock()
    proxy = runner.proxy.open_session(
        rollout_id=request.id,
        harness=slot.harness,
        limits=slot.limits,
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
            limits=slot.limits,
        )
        ending = await drive(slot.harness, session, clock)
        agent_s, wall_s = clock.agent_s, clock.wall_s
        if not await settle(proxy, sandbox, runner.settings):
            ending = Ending(out_of=FailureKind.SETTLE_TIMEOUT)
    finally:
        await proxy.close()
    workspace, too_large = await _snapshot(runner, request, sandbox)
    redirect = endpoint_redirect(workspace) if workspace else None
    calls = tuple(proxy.calls)
    note_superseded(runner.store.path(request.id), _superseded(calls))
    evidence = Evidence(ending=ending, calls=calls, notes=tuple(proxy.notes), redirect=redirect)
    rollout = Rollout(
        id=request.id,
        key=request.key,
        calls=calls,
        failure=attribute(evidence) or too_large,
        exit=ending.exit,
        agent_s=agent_s,
        wall_s=wall_s,
        late_exit=ending.late_exit,
        policy_version=next((call.versions[0].version for call in calls if call.versions), 0),
    )
    return _Attempt(rollout=rollout, workspace=workspace)


def _superseded(calls: Sequence[ModelCall]) -> dict[str, str]:
    """Return the calls on no live branch, with the reason; how many there are is the trainer's."""
    reasons = prune(calls, Pruning(max_regenerations=len(calls))).reasons
    return {call: why for call, why in reasons.items() if why in (SUPERSEDED, LOSING_CHAIN)}


async def _snapshot(
    runner: Runner, request: RolloutRequest, sandbox: Sandbox
) -> tuple[Workspace | None, Failure | None]:
    """Copy the workspace beside the rollout; one that is too large is the policy's failure."""
    target = runner.store.path(request.id) / "workspace"
    try:
        with boundary(SandboxError, f"sandbox {runner.sandbox.name!r}"):
            return await sandbox.snapshot(target), None
    except SandboxError as exc:
        if not isinstance(exc.__cause__, OSError) or exc.__cause__.errno != errno.EFBIG:
            raise
        return None, Failure(kind=FailureKind.RESOURCE_LIMIT, detail=str(exc))
