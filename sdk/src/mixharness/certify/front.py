"""A TCP relay before the proxy: causes faults for real, and measures what a program sees.

The proxy behind it is the one of every run. The relay reads a request's head and body; of answers
it knows nothing but bytes and time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson
import xxhash

from mixharness.certify.situations import Fault

_MODEL_CALLS = ("/messages", "/chat/completions", "/responses")
_HEAD_END = b"\r\n\r\n"
_CHUNK = 65536
_ASKED = ("system", "messages", "input", "tools")
"""What makes two requests the same question, in any dialect."""
_ERROR = {"type": "server_error", "code": "server_error", "message": "a planted error"}


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What went over one rollout's connections."""

    fault: Fault | None
    requests: int = 0
    """Model requests, those that a fault befell included."""
    retries: int = 0
    """Model requests that asked what an earlier one had asked."""
    struck: bool = False
    """The fault happened."""
    max_silence_s: float = 0.0
    """Longest time without a byte on a streamed answer."""
    asked: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    path: str
    raw: bytes
    """To be sent on."""
    body: Mapping[str, Any] | None
    """Of a model request; None of any other."""

    @property
    def streams(self) -> bool:
        """Say whether a streamed answer is wanted."""
        return self.body is not None and self.body.get("stream") is True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """Where one rollout's requests go."""

    host: str
    port: int
    traffic: Traffic


class Front:
    """Stands between programs and the proxy; one for all rollouts."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._server: asyncio.Server | None = None
        self._address = ""

    async def start(self) -> None:
        """Listen on a free port of this machine."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def lead(self, base_url: str, traffic: Traffic) -> str:
        """Return the address to give to a program instead of its proxy session's."""
        url = urlsplit(base_url)
        self._lanes[url.path] = _Lane(host=str(url.hostname), port=url.port or 80, traffic=traffic)
        return self._address + url.path

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read(reader)
            lane = self._lanes.get(_session(request.path))
            if lane is None:
                await _say(writer, 404)
            else:
                await _answer(lane, request, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # somebody went away, which is what clients do
        finally:
            writer.close()


async def _answer(
    lane: _Lane, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send a request on and its answer back, unless a fault befalls it."""
    fault = _befalls(lane.traffic, request)
    if fault is not None and fault.status:
        await _say(writer, fault.status)
        return
    source, target = await asyncio.open_connection(lane.host, lane.port)
    try:
        target.write(request.raw)
        await target.drain()
        watched = lane.traffic if request.streams else None
        back = _cut(source, writer, fault.cut) if fault else _relay(source, writer, watched)
        waiting = {asyncio.create_task(back), asyncio.create_task(_gone(reader))}
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await asyncio.gather(*done)
    finally:
        target.close()


def _befalls(traffic: Traffic, request: _Request) -> Fault | None:
    """Count a request, and return what goes wrong with it."""
    if request.body is None:
        return None
    number = traffic.requests
    traffic.requests += 1
    asked = {key: request.body.get(key) for key in _ASKED}
    question = xxhash.xxh3_128_hexdigest(orjson.dumps(asked))
    traffic.retries += question in traffic.asked
    traffic.asked.add(question)
    fault = traffic.fault
    if fault is None or traffic.struck or number < fault.at:
        return None
    if fault.streams_only and not request.streams:
        return None
    traffic.struck = True
    return fault


async def _relay(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, traffic: Traffic | None
) -> None:
    before = time.monotonic()
    while chunk := await source.read(_CHUNK):
        now = time.monotonic()
        if traffic is not None:
            traffic.max_silence_s = max(traffic.max_silence_s, now - before)
        before = now
        target.write(chunk)
        await target.drain()


async def _cut(source: asyncio.StreamReader, target: asyncio.StreamWriter, share: float) -> None:
    head, _, body = (await source.read()).partition(_HEAD_END)
    # The proxy's part is over: it believes that all of it arrived.
    target.transport.set_write_buffer_limits(0)
    target.write(head + _HEAD_END + body[: int(len(body) * share)])
    await target.drain()
    target.transport.abort()


async def _say(target: asyncio.StreamWriter, status: int) -> None:
    body = orjson.dumps({"type": "error", "error": _ERROR})
    lines = [f"HTTP/1.1 {status} Planted", "content-type: application/json", "retry-after: 1"]
    lines += [f"content-length: {len(body)}", "connection: close"]
    target.write("\r\n".join(lines).encode() + _HEAD_END + body)
    await target.drain()


async def _gone(reader: asyncio.StreamReader) -> None:
    """Return when the client has gone away; it sends nothing more on a connection of its own."""
    await reader.read(1)


async def _read(reader: asyncio.StreamReader) -> _Request:
    """Read one request; the connection is closed after its answer.

    Raises:
        asyncio.IncompleteReadError: the client went away.
    """
    head = (await reader.readuntil(_HEAD_END)).removesuffix(_HEAD_END)
    first, *headers = head.split(b"\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in map(_split, headers)}
    body = await reader.readexactly(int(fields.get(b"content-length", 0)))
    method, path = first.decode("latin-1").split(" ")[:2]
    kept = [line for line in headers if not line.lower().startswith(b"connection:")]
    raw = b"\r\n".join([first, *kept, b"connection: close"]) + _HEAD_END + body
    asks = method == "POST" and path.partition("?")[0].endswith(_MODEL_CALLS)
    return _Request(path=path, raw=raw, body=_json(body) if asks else None)


def _split(line: bytes) -> tuple[bytes, bytes, bytes]:
    return line.partition(b":")


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _session(path: str) -> str:
    """Return the part of a path that names a session: `/r/ROLLOUT/SECRET`."""
    return "/".join(path.partition("?")[0].split("/")[:4])
