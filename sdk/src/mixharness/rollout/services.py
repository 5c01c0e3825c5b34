"""A task's own programs beside the agent: started in its sandbox, watched until they are healthy.

They end with the sandbox. What an MCP server offers is told to the program by each harness.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from mixharness.errors import SandboxError
from mixharness.sandbox import ExecResult, Sandbox
from mixharness.types import Service

_LOOK_S = 0.1
_OUTPUT_TAIL = 500


@asynccontextmanager
async def services(sandbox: Sandbox, wanted: Sequence[Service]) -> AsyncIterator[None]:
    """Run services inside the context, all of them healthy when it is entered.

    Raises:
        SandboxError: one ended, or was not healthy in time; has the end of what it printed.
    """
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(_running(sandbox, each)) for each in wanted]
        for service, running in zip(wanted, started, strict=True):
            await _healthy(sandbox, service, running)
        yield


@asynccontextmanager
async def _running(sandbox: Sandbox, service: Service) -> AsyncIterator[asyncio.Task[ExecResult]]:
    running = asyncio.create_task(sandbox.exec(service.command, env=service.env))
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.wait({running})


async def _healthy(sandbox: Sandbox, service: Service, running: asyncio.Task[ExecResult]) -> None:
    ends = time.monotonic() + service.start_s
    while not running.done():
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise SandboxError(f"service {service.name!r}: not healthy after {service.start_s} s")
        result = await sandbox.exec(service.health, env=service.env, timeout_s=left_s)
        if result.exit_code == 0 and not result.timed_out:
            return
        await asyncio.wait({running}, timeout=_LOOK_S)
    result = running.result()
    tail = (result.stdout + result.stderr)[-_OUTPUT_TAIL:].decode(errors="replace")
    raise SandboxError(f"service {service.name!r} ended with code {result.exit_code}: {tail}")
