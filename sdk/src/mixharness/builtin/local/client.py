"""The runner's end of a sandbox's init process: messages out, replies in. It starts nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Sequence

from mixharness.errors import SandboxError

MAX_FDS = 16


class InitClient:
    """Talks to one init process. Bound to the event loop that made it; `close` ends the sandbox."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._idents = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[int]] = {"ready": self._loop.create_future()}
        self._loop.add_reader(sock, self._receive)
        self.closed = False
        self.handed_out: list[int] = []
        """Descriptors that came with the first message; closed with this."""

    async def ready(self) -> None:
        """Wait until the init process listens.

        Raises:
            SandboxError: it died first.
        """
        await self._waiting["ready"]

    def ask(
        self, verb: str, *arguments: str, fds: Sequence[int] = ()
    ) -> tuple[str, asyncio.Future[int]]:
        """Send a message; return its ident and the future of its reply.

        Raises:
            SandboxError: the sandbox is closed or its init process is gone.
        """
        ident = str(next(self._idents))
        future: asyncio.Future[int] = self._loop.create_future()
        message = " ".join([verb, ident, *arguments]).encode()
        try:
            socket.send_fds(self._sock, [message], fds)
        except OSError as exc:
            raise SandboxError(f"the sandbox is gone, so it cannot {verb}: {exc}") from exc
        self._waiting[ident] = future
        return ident, future

    def close(self) -> None:
        """Close the socket, at which the init process kills everything; may be called twice."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for fd in self.handed_out:
            os.close(fd)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxError("the sandbox was closed"))
                future.exception()  # marks it as seen: nobody may be waiting any more
        self._waiting.clear()

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, 4096, MAX_FDS)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self.handed_out += fds
        if not data:
            self.close()
            return
        ident, value = data.decode().split()
        future = self._waiting.pop(ident, None)
        if future is not None and not future.done():
            future.set_result(int(value))


class Capture:
    """Reads a pipe as it fills and keeps its last `limit` bytes: a program's result comes last."""

    def __init__(self, limit: int, on_chunk: Callable[[bytes], None] | None = None) -> None:
        self._limit = limit
        self._on_chunk = on_chunk
        self._loop = asyncio.get_running_loop()
        self._fd, self.write_end = os.pipe()
        os.set_blocking(self._fd, False)
        self.data = bytearray()
        self.eof = asyncio.Event()
        self._loop.add_reader(self._fd, self._receive)

    def close_write_end(self) -> None:
        """Close our copy of the end that the command writes to."""
        os.close(self.write_end)

    def close(self) -> None:
        """Stop reading; may be called twice."""
        if not self.eof.is_set():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.eof.set()

    def _receive(self) -> None:
        try:
            chunk = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        if chunk and self._on_chunk is not None:
            self._on_chunk(chunk)
        self.data += chunk
        del self.data[: max(0, len(self.data) - self._limit)]
        if not chunk:
            self.close()
