"""The one way out of a sandbox: its own 127.0.0.1, handed on to the same port of this machine.

The sockets were opened inside, the forwarding happens here, so no program in there can end it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

_CHUNK = 1 << 16


@asynccontextmanager
async def forwarding(listening: Sequence[int]) -> AsyncIterator[None]:
    """Hand connections on while the context is open.

    Args:
        listening: descriptors of sockets that listen in the sandbox; they stay the caller's.
    """
    connections: set[asyncio.Task[None]] = set()

    def accept(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_connect(port, reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    servers = []
    try:
        for fd in listening:
            sock = socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM)
            port = sock.getsockname()[1]
            servers.append(await asyncio.start_server(partial(accept, port), sock=sock))
        yield
    finally:
        for server in servers:
            server.close()
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(connections)


async def _connect(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Join a connection with one to this machine's port until both sides have ended."""
    try:
        there, back = await asyncio.open_connection("127.0.0.1", port)
    except OSError:  # nobody listens: the program sees its connection end
        writer.close()
        return
    try:
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
    finally:
        for end in (writer, back):
            end.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(_CHUNK):
            target.write(chunk)
            await target.drain()
        target.write_eof()
