"""What a rollout costs beside the bare program: sandbox, proxy, records, settling and grading.

Each program does one task twice: in a rollout, and as a process of this machine that is pointed at
a server with canned answers. Every model call samples for half a second in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mixharness.builtin.scripted import ScriptedConfig
from mixharness.certify.policy import Part, ScriptedPolicy
from mixharness.certify.situations import Call, Situation, Turn
from mixharness.certify.tools import Offered, tool_call
from mixharness.component import ComponentConfig
from mixharness.engine import GenerateRequest, Generation
from mixharness.errors import ProgramMissingError
from mixharness.harness import Harness, Program, Session
from mixharness.plugins import Registry, load_plugins
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.proxy.chat import Answer
from mixharness.proxy.dialects import Dialect
from mixharness.proxy.dialects.anthropic_messages import AnthropicMessages
from mixharness.proxy.dialects.openai_chat import OpenAIChat
from mixharness.proxy.dialects.openai_responses import OpenAIResponses
from mixharness.proxy.server import Server
from mixharness.rollout.cache import cache_dir
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.sandbox import ExecResult, Sandbox, Workspace
from mixharness.types import HarnessExit, Limits, Rollout, Score, Task
from mixharness.verifier import Verifier

log = structlog.get_logger()

NAMES = ("claude_code", "codex", "openclaw")
CALLS, SAMPLE_S = 20, 0.5
CONTEXT = 1 << 18
"""Tokens of one byte each."""
DIALECTS = (AnthropicMessages(), OpenAIChat(), OpenAIResponses())
TURNS = (
    *[Turn(calls=(Call(shell="echo step >> steps.txt"),))] * (CALLS - 1),
    Turn(text="Done."),
)
SITUATION = Situation(name="steps", about="many small steps", turns=TURNS)
TASK = Task(id="steps", prompt="Write steps.", verifier="steps", files={"a.txt": "alpha\n"})


class SteadyPolicy(ScriptedPolicy):
    """Samples for `SAMPLE_S`, its own work included."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Say the next turn."""
        ends = time.perf_counter() + SAMPLE_S
        generation = await super().generate(request)
        await asyncio.sleep(ends - time.perf_counter())
        return generation


class Canned:
    """The bare program's model server: no records, no tokens, answers by their number."""

    def __init__(self) -> None:
        routes = [
            Route(path, self._endpoint(dialect), methods=["POST"])
            for dialect in DIALECTS
            for path in {dialect.path, dialect.path.removeprefix("/v1")}
        ]
        self._server = Server(Starlette(routes=[*routes, Route("/{path:path}", self._hello)]))
        self.calls = 0

    async def start(self) -> str:
        """Serve; return the base URL."""
        return f"http://127.0.0.1:{await self._server.start('127.0.0.1', 0)}"

    async def stop(self) -> None:
        """Stop serving."""
        await self._server.stop()

    def _endpoint(self, dialect: Dialect) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            ends = time.perf_counter() + SAMPLE_S
            body = orjson.loads(await request.body())
            chat = dialect.parse(body)
            turn = TURNS[min(self.calls, CALLS - 1)]
            tools = [Offered(tool.name, tool.parameters) for tool in chat.tools]
            calls = [tool_call(call, tools) for call in turn.calls]
            self.calls += 1
            answer = Answer(
                id=f"answer_{self.calls}",
                text=turn.text,
                tool_calls=tuple(_with_id(call, f"call_{self.calls}") for call in calls),
                prompt_tokens=1,
                completion_tokens=1,
            )
            await asyncio.sleep(ends - time.perf_counter())
            if not chat.stream:
                return JSONResponse(dialect.render(answer, chat.model, body))
            events = b"".join(dialect.events(answer, chat.model, body))
            return Response(events, media_type="text/event-stream")

        return endpoint

    async def _hello(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": []})


class Bare(Sandbox):
    """No sandbox: the program is a process like any other."""

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


@dataclass(slots=True)
class Stamps:
    """When the parts of one rollout began, and when the program was done."""

    opening: float = 0.0
    running: float = 0.0
    settling: float = 0.0
    grading: float = 0.0
    end: float = 0.0

    def seconds(self) -> dict[str, float]:
        """Return how long each part took."""
        return {
            "run_s": self.settling - self.running,
            "open_s": self.running - self.opening,
            "settle_s": self.grading - self.settling,
            "grade_s": self.end - self.grading,
        }


class Steps(Verifier[ComponentConfig]):
    """Counts the steps in a fresh sandbox, as tasks with a grader of their own do."""

    name = "steps"

    def __init__(self, stamps: Stamps) -> None:
        super().__init__(ComponentConfig())
        self._stamps = stamps

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Return the share of steps that were written."""
        self._stamps.grading = time.perf_counter()
        async with workspace.sandbox() as sandbox:
            done = await sandbox.exec(["grep", "-c", "step", "steps.txt"], timeout_s=60)
        return Score(value=int(done.stdout or 0) / (CALLS - 1))


def timed(harness: Harness[Any], stamps: Stamps) -> Harness[Any]:
    """Return the harness; it notes when its program starts and when it has ended."""
    run = harness.run

    async def noting(session: Session) -> HarnessExit:
        stamps.running = time.perf_counter()
        try:
            return await run(session)
        finally:
            stamps.settling = time.perf_counter()

    harness.run = noting  # type: ignore[method-assign]
    return harness


class Site:
    """Proxy, sandboxes and canned server of all measurements."""

    def __init__(self, runner: Runner, parts: dict[str, Part], stamps: Stamps) -> None:
        self._runner, self._parts, self._stamps = runner, parts, stamps
        self._samples = 0

    async def ours(self, harness: Harness[Any], program: Program) -> dict[str, float]:
        """Return the seconds of one rollout's parts.

        Raises:
            RuntimeError: the rollout was not as it should be.
        """
        slot = HarnessSlot(
            label=harness.name,
            harness=timed(harness, self._stamps),
            program=program,
            limits=Limits(max_turns=CALLS + 5),
        )
        self._samples += 1
        request = RolloutRequest(task=TASK, slot=slot, sample=self._samples, stage="bench")
        self._parts[request.id] = Part(SITUATION)
        self._stamps.opening = time.perf_counter()
        rollout = await run_one(self._runner, request)
        self._stamps.end = time.perf_counter()
        if rollout.failure or rollout.reward != 1.0 or len(rollout.calls) != CALLS:
            raise RuntimeError(f"{harness.name}: {len(rollout.calls)} calls, {rollout.failure}")
        return self._stamps.seconds()


@asynccontextmanager
async def open_site(registry: Registry, sandbox: str) -> AsyncIterator[Site]:
    """Start what the rollouts need; all of it is stopped at the end."""
    cls = registry.get("sandbox", sandbox)
    backend, parts, stamps = cls(cls.config_type()), dict[str, Part](), Stamps()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mixharness-bench-"))
        policy = SteadyPolicy(ScriptedConfig(turns=("",), context=CONTEXT), parts, SAMPLE_S)
        await policy.start()
        stack.push_async_callback(policy.stop)
        stack.push_async_callback(backend.stop)
        await backend.start()
        proxy = Proxy(policy, ProxySettings(max_tokens=4096))
        stack.push_async_callback(proxy.stop)
        await backend.admit(await proxy.start(backend.proxy_host))
        runner = Runner(
            proxy=proxy,
            sandbox=backend,
            verifiers={TASK.verifier: Steps(stamps)},
            store=RunStore(Path(folder)),
            settings=RunnerSettings(max_infra_retries=0),
        )
        yield Site(runner, parts, stamps)


async def straight(harness: Harness[Any], program: Program) -> float:
    """Return the seconds from the start of the bare program to its exit.

    Raises:
        RuntimeError: it did not do what it should.
    """
    canned = Canned()
    with tempfile.TemporaryDirectory(prefix="mixharness-bench-") as folder:
        session = Session(
            task=TASK,
            program=program,
            sandbox=Bare(Path(folder), program),
            base_url=await canned.start(),
            secret="bench",
            limits=Limits(max_turns=CALLS + 5),
        )
        try:
            began = time.perf_counter()
            ending = await harness.run(session)
            seconds = time.perf_counter() - began
        finally:
            await canned.stop()
    if ending.reason != "completed" or canned.calls != CALLS:
        raise RuntimeError(f"{harness.name}: {canned.calls} calls, {ending}")
    return seconds


def installed(registry: Registry, names: Sequence[str]) -> dict[str, Program]:
    """Return the programs that are there; says which are not."""
    found: dict[str, Program] = {}
    for name in names:
        cls = registry.find("harness", name)
        try:
            program = cls(cls.config_type()).find(cache_dir()) if cls else None
        except ProgramMissingError as exc:
            program = None
            log.warning("harness_not_measured", harness=name, reason=str(exc))
        if program is not None:
            found[name] = program
    return found


async def measure(names: Sequence[str], sandbox: str, plays: int) -> dict[str, Any]:
    """Return all figures: medians over `plays`, the two kinds of run in turn."""
    registry = load_plugins()
    figures: dict[str, dict[str, float]] = {}
    async with open_site(registry, sandbox) as site:
        for name, program in installed(registry, names).items():
            cls = registry.get("harness", name)
            bare_s, parts = [], []
            for play in range(plays):
                bare_s.append(await straight(cls(cls.config_type()), program))
                parts.append(await site.ours(cls(cls.config_type()), program))
                log.info("play", harness=name, play=play, bare_s=bare_s[-1], **parts[-1])
            medians = {key: median(each[key] for each in parts) for key in parts[0]}
            figures[name] = {"ratio": medians.pop("run_s") / median(bare_s), **medians}
    return {"harnesses": figures}


def _with_id(call: Any, name: str) -> Any:
    return type(call)(id=name, name=call.name, arguments=call.arguments)


async def _all_of(
    reader: asyncio.StreamReader | None, on_chunk: Callable[[bytes], None] | None
) -> bytes:
    chunks: list[bytes] = []
    while reader is not None and (chunk := await reader.read(1 << 16)):
        chunks.append(chunk)
        if on_chunk is not None:
            on_chunk(chunk)
    return b"".join(chunks)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plays", type=int, default=3)
    parser.add_argument("--sandbox", default="docker")
    parser.add_argument("--harness", action="append", help="once per harness; all without")
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    result = asyncio.run(measure(args.harness or NAMES, args.sandbox, args.plays))
    if args.json:
        print(json.dumps(result))
        return
    for name, found in result["harnesses"].items():
        print(f"{name:<14}" + "".join(f"{key} {value:8.3f}   " for key, value in found.items()))


if __name__ == "__main__":
    main()
