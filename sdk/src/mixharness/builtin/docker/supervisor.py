"""The runner's end of a container's first program: questions out, answers in. It starts nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from mixharness.builtin.docker.stream import STDOUT, Stream
from mixharness.errors import SandboxError

SCRIPT = Path(__file__).with_name("supervisor.sh").read_text(encoding="utf-8")
ANSWER_LIMIT_S = 30.0

T = TypeVar("T")


class Supervisor:
    """Talks to one container, and is the first to know that it ended.

    Attributes:
        gone: done as soon as the container ended or cannot be reached.
    """

    def __init__(self, stream: Stream, why: Callable[[], Awaitable[str]]) -> None:
        """Listen on a connection to a container that is about to start.

        Args:
            stream: the container's own streams.
            why: says why a container ended, for people.
        """
        loop = asyncio.get_running_loop()
        self._stream = stream
        self._why = why
        self._reason = ""
        self._ready: asyncio.Future[str] = loop.create_future()
        self._answers = deque([self._ready])
        self.gone: asyncio.Future[None] = loop.create_future()
        self._listening = asyncio.create_task(self._listen())

    async def ready(self) -> None:
        """Wait until the program listens.

        Raises:
            SandboxError: the container ended first.
        """
        await self._answered(self._ready)

    async def ask(self, question: str) -> str:
        """Return the answer to one line.

        Raises:
            SandboxError: the container ended, or does not answer within 30 s.
        """
        if self.gone.done():
            raise SandboxError(self._reason)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._stream.write(f"{question}\n".encode())
        return await self._answered(answer)

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """Return what `work` returns.

        Raises:
            SandboxError: the container ended first.
        """
        task = asyncio.ensure_future(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self.gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise SandboxError(self._reason)
        finally:
            task.cancel()

    def close(self) -> None:
        """Hang up, at which the container ends; may be called twice."""
        self._stream.close()
        self._listening.cancel()
        if not self.gone.done():
            self._reason = "the sandbox was closed"
            self.gone.set_result(None)

    async def _answered(self, answer: asyncio.Future[str]) -> str:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await self.unless_gone(answer)
        except TimeoutError:
            raise SandboxError(f"the container does not answer within {ANSWER_LIMIT_S} s") from None

    async def _listen(self) -> None:
        line = b""
        async for kind, chunk in self._stream.frames():
            if kind != STDOUT:
                continue
            *lines, line = (line + chunk).split(b"\n")
            for each in lines:
                answer = self._answers.popleft()
                if not answer.done():  # whoever asked may have been cancelled
                    answer.set_result(each.decode())
        self._reason = f"the container ended: {await self._why()}"
        self.gone.set_result(None)
