"""A raw connection to a program in a container: bytes in, framed output out. It starts nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import BinaryIO

from mixharness.errors import SandboxError

STDOUT, STDERR = 1, 2
_CHUNK = 1 << 16
_LONGEST_ERROR = 1 << 16


class Stream:
    """An HTTP connection to the engine that was upgraded to the program's three streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def frames(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield output as (`STDOUT` or `STDERR`, chunk) until the connection ends, for any reason.

        Eight bytes precede each frame: the stream, three zeros, the length (Engine API, attach).
        """
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(8)
                left = int.from_bytes(head[4:], "big")
                while left:
                    chunk = await self._reader.read(min(left, _CHUNK))
                    if not chunk:
                        return
                    left -= len(chunk)
                    yield head[0], chunk

    def write(self, data: bytes) -> None:
        """Send a little, without waiting; a connection that is gone shows in `frames`."""
        self._writer.write(data)

    async def feed(self, file: BinaryIO) -> None:
        """Send all of a file and the end of the input; a program may end before it has read it."""
        with suppress(ConnectionError):
            while chunk := file.read(_CHUNK):
                self._writer.write(chunk)
                await self._writer.drain()
            self._writer.write_eof()

    def close(self) -> None:
        """Drop the connection with what was not sent yet; may be called twice."""
        self._writer.transport.abort()  # `close` waits for a program that reads no more


async def hijack(socket: str, path: str, body: Mapping[str, object]) -> Stream:
    """Ask the engine to upgrade a connection; the docker package's own reader can lose output.

    Args:
        socket: path of the engine's Unix socket.
        path: of the request, version included.
        body: of the request.

    Raises:
        SandboxError: the engine refuses, or there is none.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError as exc:
        raise SandboxError(f"no Docker engine answers at {socket}: {exc}") from exc
    try:
        writer.write(_request(path, json.dumps(body).encode()))
        head = await reader.readuntil(b"\r\n\r\n")
        if int(head.split(maxsplit=2)[1]) not in (101, 200):
            raise SandboxError(f"the Docker engine refuses: {await _message(reader)}")
    except (OSError, asyncio.IncompleteReadError) as exc:
        writer.transport.abort()
        raise SandboxError(f"the Docker engine hung up: {exc}") from exc
    except BaseException:
        writer.transport.abort()
        raise
    return Stream(reader, writer)


def _request(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1",
        "Host: docker",
        "Connection: Upgrade",
        "Upgrade: tcp",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*head, "", ""]).encode() + body


async def _message(reader: asyncio.StreamReader) -> str:
    text = (await reader.read(_LONGEST_ERROR)).decode(errors="replace").strip()
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text
