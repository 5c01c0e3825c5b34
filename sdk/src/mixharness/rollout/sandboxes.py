"""Sandboxes as rollouts use them: whatever a backend raises is a SandboxError, on every path.

What runs in a sandbox is not here, nor how one is made.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mixharness.errors import SandboxError, boundary
from mixharness.proxy.session import ProxySession
from mixharness.rollout.drive import settle
from mixharness.rollout.services import services
from mixharness.rollout.types import RolloutRequest, Runner
from mixharness.sandbox import Sandbox, SandboxBackend, SandboxSpec, Workspace
from mixharness.types import Failure, FailureKind


@asynccontextmanager
async def opened(backend: SandboxBackend[Any], spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """Open a sandbox, and close it when the context is left.

    Raises:
        SandboxError: it does not open, or does not close: then nothing says that it is gone.
    """
    stack, what = AsyncExitStack(), f"sandbox {backend.name!r}"
    with boundary(SandboxError, what):
        sandbox = await stack.enter_async_context(backend.open(spec))
    try:
        yield sandbox
    finally:
        with boundary(SandboxError, what):
            await stack.aclose()


@asynccontextmanager
async def task_sandbox(runner: Runner, request: RolloutRequest) -> AsyncIterator[Sandbox]:
    """Open the sandbox that an agent works in, its task's services running.

    Raises:
        SandboxError: sandbox or services do not start, or the sandbox does not close.
    """
    task, program = request.task, request.slot.program
    spec = SandboxSpec(
        rollout_id=request.id,
        limits=request.limits,
        folders={"": task.folder} if task.folder else {},
        files=task.files,
        program_path=program.path if program else None,
        workspace=task.workspace,
        image=task.image,
    )
    async with opened(runner.sandbox, spec) as sandbox, AsyncExitStack() as stack:
        with boundary(SandboxError, f"sandbox {runner.sandbox.name!r}"):
            await stack.enter_async_context(services(sandbox, task.services))
        yield sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What is left in a sandbox whose harness has stopped."""

    settled: bool = True
    """The records came to rest in time."""
    workspace: Workspace | None = None
    """The snapshot; None when it could not be made and that is the policy's fault."""
    limit: str = ""
    """The limit that the sandbox says was hit."""
    failure: Failure | None = None
    """Why there is no snapshot."""


async def remains(
    runner: Runner, request: RolloutRequest, sandbox: Sandbox, proxy: ProxySession
) -> Remains:
    """Wait until all rests, end the proxy session, and copy the workspace beside the rollout.

    Raises:
        SandboxError: the sandbox failed, and not at one of the rollout's limits.
    """
    target = runner.store.path(request.id) / "workspace"
    try:
        with boundary(SandboxError, f"sandbox {runner.sandbox.name!r}"):
            settled = await settle(proxy, sandbox, runner.settings)
            await proxy.close()
            workspace = await sandbox.snapshot(target)
            return Remains(settled=settled, workspace=workspace, limit=await sandbox.limit_hit())
    except SandboxError as exc:
        limit = "disk_mb" if _too_large(exc) else await limit_hit(sandbox)
        if not limit:
            raise
        failure = Failure(kind=FailureKind.RESOURCE_LIMIT, detail=f"{limit}: {exc}")
        return Remains(limit=limit, failure=failure)


async def limit_hit(sandbox: Sandbox) -> str:
    """Return the limit that ended a sandbox that has failed, or nothing."""
    try:
        with boundary(SandboxError, "the sandbox"):
            return await sandbox.limit_hit()
    except SandboxError:  # nobody is left to ask
        return ""


def _too_large(error: SandboxError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EFBIG
