"""A harness program without any of this project around it: a plain process, and canned answers.

What is compared with it is harness_overhead.py's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mixharness.certify.situations import Turn
from mixharness.certify.tools import Offered, tool_call
from mixharness.harness import Program
from mixharness.proxy.chat import Answer, ChatRequest
from mixharness.proxy.dialects import Dialect
from mixharness.proxy.dialects.anthropic_messages import AnthropicMessages
from mixharness.proxy.dialects.openai_chat import OpenAIChat
from mixharness.proxy.dialects.openai_responses import OpenAIResponses
from mixharness.proxy.server import Server
from mixharness.sandbox import ExecResult, Sandbox, Workspace

DIALECTS = (AnthropicMessages(), OpenAIChat(), OpenAIResponses())


class CannedServer:
    """Says one turn after the other, each after `sample_s`: no tokens, no records, no session.

    Attributes:
        calls: how many model calls there were.
    """

    def __init__(self, turns: Sequence[Turn], sample_s: float) -> None:
        self.calls = 0
        self._turns, self._sample_s = turns, sample_s

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve every dialect; yield the base URL."""
        routes = [
            Route(path, self._endpoint(dialect), methods=["POST"])
            for dialect in DIALECTS
            for path in {dialect.path, dialect.path.removeprefix("/v1")}
        ]
        server = Server(Starlette(routes=[*routes, Route("/{path:path}", _other)]))
        try:
            yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
        finally:
            await server.stop()

    def _endpoint(self, dialect: Dialect) -> Callable[[Request], object]:
        async def endpoint(request: Request) -> Response:
            ends = time.perf_counter() + self._sample_s
            body = orjson.loads(await request.body())
            chat = dialect.parse(body)
            answer = self._answer(chat)
            await asyncio.sleep(ends - time.perf_counter())
            if not chat.stream:
                return JSONResponse(dialect.render(answer, chat.model, body))
            events = b"".join(dialect.events(answer, chat.model, body))
            return Response(events, media_type="text/event-stream")

        return endpoint

    def _answer(self, chat: ChatRequest) -> Answer:
        turn = self._turns[min(self.calls, len(self._turns) - 1)]
        self.calls += 1
        tools = [Offered(tool.name, tool.parameters) for tool in chat.tools]
        calls = [replace(tool_call(call, tools), id=f"call_{self.calls}") for call in turn.calls]
        return Answer(
            id=f"answer_{self.calls}",
            text=turn.text,
            tool_calls=tuple(calls),
            prompt_tokens=1,
            completion_tokens=1,
        )


async def _other(request: Request) -> Response:
    """Answer what programs ask beside their model calls."""
    return JSONResponse({"object": "list", "data": []})


class PlainProcess(Sandbox):
    """No sandbox: commands are processes like any other, of this user, on this machine."""

    def __init__(self, folder: Path, program: Program) -> None:
        self.workspace, self.home = str(folder / "workspace"), str(folder / "home")
        self.program_path = str(program.path)
        for name in (self.workspace, f"{self.home}/tmp"):
            Path(name).mkdir(parents=True)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env or {}),
            cwd=cwd or self.workspace,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
        )
        stdout, stderr = await asyncio.gather(
            _all_of(process.stdout, on_stdout), _all_of(process.stderr, None)
        )
        return ExecResult(exit_code=await process.wait(), stdout=stdout, stderr=stderr)

    async def read(self, path: str) -> bytes:
        """Return a file."""
        return Path(self.workspace, path).read_bytes()

    async def write(self, path: str, data: bytes) -> None:
        """Write a file."""
        file = Path(self.workspace, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    async def snapshot(self, target: Path) -> Workspace:
        """Return the workspace itself."""
        return Workspace(Path(self.workspace))

    async def processes(self) -> int:
        """Return 0: nobody asks."""
        return 0

    async def kill(self) -> None:
        """Do nothing: nobody asks."""


async def _all_of(
    reader: asyncio.StreamReader | None, on_chunk: Callable[[bytes], None] | None
) -> bytes:
    chunks: list[bytes] = []
    while reader is not None and (chunk := await reader.read(1 << 16)):
        chunks.append(chunk)
        if on_chunk is not None:
            on_chunk(chunk)
    return b"".join(chunks)
