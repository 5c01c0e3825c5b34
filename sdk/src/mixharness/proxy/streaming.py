"""One model call over HTTP: headers, keep-alives, the whole answer, and clients that go away (1.7).

An answer is shown only when all of it is there, because programs run a tool at the end of its
block. What the answer is was decided in the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mixharness.proxy.admission import Ticket
from mixharness.proxy.chat import Answer
from mixharness.proxy.dialects import Dialect
from mixharness.proxy.session import ProxySession

# The harness's own retries would only hide an engine that is broken.
_ERROR_HEADERS = {"x-should-retry": "false"}


class Exchange(Response):
    """Waits for a call and sends its answer, as a stream or at once."""

    def __init__(
        self,
        session: ProxySession,
        ticket: Ticket,
        dialect: Dialect,
        encode: Callable[[Answer], bytes],
        keep_alive_s: float | None,
    ) -> None:
        super().__init__()
        self._session, self._ticket, self._dialect = session, ticket, dialect
        self._encode, self._keep_alive_s = encode, keep_alive_s
        """Seconds between keep-alives; None for a response that is no stream."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client of the call."""
        gone = asyncio.create_task(_gone(receive))
        try:
            if self._keep_alive_s is not None:
                await send(_start(200, "text/event-stream; charset=utf-8"))
            await self._wait(gone, send)
            await asyncio.sleep(0)  # lets a disconnect that already happened be seen
            if gone.done():
                self._session.leave(self._ticket)
            else:
                await self._answer(send)
        finally:
            gone.cancel()

    async def _wait(self, gone: asyncio.Task[None], send: Send) -> None:
        while not self._ticket.task.done() and not gone.done():
            done, _ = await asyncio.wait(
                {self._ticket.task, gone},
                timeout=self._keep_alive_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                await send(_chunk(self._dialect.keep_alive))

    async def _answer(self, send: Send) -> None:
        task = self._ticket.task
        failure = "the rollout has ended" if task.cancelled() else task.exception()
        if failure is not None:
            await self._fail(409 if task.cancelled() else 500, str(failure), send)
            return
        payload = self._encode(task.result())
        if self._keep_alive_s is None:
            await send(_start(200, "application/json", len(payload)))
        await send(_chunk(payload, last=True))
        self._session.delivered(self._ticket)

    async def _fail(self, status: int, message: str, send: Send) -> None:
        if self._keep_alive_s is not None:
            await send(_chunk(self._dialect.stream_error(message), last=True))
            return
        body = orjson.dumps(self._dialect.error(status, message))
        await send(_start(status, "application/json", len(body)))
        await send(_chunk(body, last=True))


async def _gone(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(status: int, content_type: str, length: int | None = None) -> dict[str, object]:
    headers = {"content-type": content_type, "cache-control": "no-cache"}
    if length is not None:
        headers["content-length"] = str(length)
    if status >= 500:
        headers |= _ERROR_HEADERS
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}


def _chunk(data: bytes, *, last: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": not last}
