"""uvicorn inside a running event loop: a socket of our own, signals left alone. No routes here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from mixharness.errors import ConfigError


class Server:
    """One HTTP server. `start` returns when it accepts connections."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=3600,  # programs reuse a connection after minutes of tool use
            timeout_graceful_shutdown=2,
        )
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Start serving and return the port.

        Raises:
            ConfigError: the address cannot be taken.
        """
        listener = _listen(host, port)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Stop serving; may be called twice."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the runner."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns off the delay that costs each answer 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        message = f"cannot serve on {host} port {port}: {exc.strerror}; use a free port, or 0"
        raise ConfigError("the proxy's address", [("port", message)]) from exc
    return listener
