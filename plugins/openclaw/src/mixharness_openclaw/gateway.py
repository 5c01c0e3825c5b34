"""The program's own Gateway, beside the one rollout that it serves: with it sub-agents run.

It is never shared. One Gateway is one process, one user and one state folder for all that it
serves, so that a rollout could reach the files and the key of another (ARCHITECTURE 4, rule 11).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mixharness import ExecResult, Sandbox

_LISTENING = b"http server listening"
_TAIL = 2000
_CALL_TIMEOUT_MS = "60000"


def free_port() -> int:
    """Return a port of the loopback that is free here, where `local` sandboxes share it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def gateway_keys(port: int, token: str) -> dict[str, Any]:
    """Return what the program's configuration file says of a Gateway that only the agent uses."""
    off = {"enabled": False}
    auth = {"mode": "token", "token": token}
    reach = {"mode": "local", "port": port, "bind": "loopback", "auth": auth}
    return {
        "gateway": reach | {"controlUi": off, "terminal": off},
        "discovery": {"mdns": {"mode": "off"}},
    }


@asynccontextmanager
async def gateway(
    sandbox: Sandbox, program: Sequence[str], env: Mapping[str, str]
) -> AsyncIterator[None]:
    """Run a Gateway in a sandbox until the end of the block, where it is killed.

    Raises:
        RuntimeError: it ended before it listened.
    """
    listening, said = asyncio.Event(), bytearray()

    def on_stdout(chunk: bytes) -> None:
        said.extend(chunk)
        if _LISTENING in said:
            listening.set()

    async def serve() -> ExecResult:
        try:
            return await sandbox.exec([*program, "gateway", "run"], env=env, on_stdout=on_stdout)
        finally:
            listening.set()

    serving = asyncio.create_task(serve())
    try:
        await listening.wait()
        if serving.done():
            ended = serving.result()
            tail = ended.stderr[-_TAIL:].decode(errors="replace")
            raise RuntimeError(f"openclaw's Gateway ended with exit code {ended.exit_code}: {tail}")
        yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def wait_until_idle(
    sandbox: Sandbox, program: Sequence[str], env: Mapping[str, str], within_s: float
) -> None:
    """Wait for sub-agents, and for the turns of their parents that they wake up.

    The Gateway is left suspended: it takes no more work.

    Raises:
        RuntimeError: there was still work at the end of that time, or there is no Gateway.
    """
    wait = ["gateway", "suspend", "--wait", str(int(within_s)), "--timeout", _CALL_TIMEOUT_MS]
    done = await sandbox.exec([*program, *wait], env=env)
    if done.exit_code:
        said = (done.stdout + done.stderr)[-_TAIL:].decode(errors="replace")
        raise RuntimeError(f"openclaw's Gateway did not become idle: {said}")
