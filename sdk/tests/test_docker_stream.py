"""The raw connection to the engine, against a socket that answers and then reads nothing."""

import asyncio
from pathlib import Path

import pytest

from mixharness.builtin.docker.stream import hijack

MORE_THAN_A_SOCKET_HOLDS = 1 << 22


@pytest.mark.anyio
async def test_close_does_not_wait_for_a_program_that_reads_no_more(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
        await gone.wait()
        writer.close()

    path = str(tmp_path / "engine.sock")
    server = await asyncio.start_unix_server(engine, path)
    stream = await hijack(path, "/exec/1/start", {})
    stream.write(b"x" * MORE_THAN_A_SOCKET_HOLDS)

    stream.close()

    async with asyncio.timeout(5):
        assert [frame async for frame in stream.frames()] == []
    gone.set()
    server.close()
