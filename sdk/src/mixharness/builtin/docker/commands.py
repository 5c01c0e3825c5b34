"""Commands in a container: one `docker exec` each, with its exit code and its two outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from mixharness.builtin.docker.container import Container
from mixharness.builtin.docker.engine import Engine
from mixharness.builtin.docker.stream import STDERR, Stream
from mixharness.errors import SandboxError

KILL_LIMIT_S = 10.0
CANNOT_START = 126
NO_PROCESS_LEFT = b"cannot start: the sandbox's limit of processes is reached\n"
# The first line of stderr is the process number, by which the command can be ended. docker-init
# adopts what the command leaves behind while it runs. Without memory, a command goes first.
_WRAPPER = """\
echo $$ >&2
{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
cd -- "$1" || exit 126
shift
unset OLDPWD
exec /sbin/docker-init -s -- "$@"
"""

Sink = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, and where its output goes."""

    argv: Sequence[str]
    cwd: str
    out: Sink
    err: Sink
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: BinaryIO | None = None


class Commands:
    """Runs commands in one container."""

    def __init__(self, engine: Engine, container: Container) -> None:
        self._engine = engine
        self._container = container
        self._supervisor = container.supervisor

    async def run(self, command: Command, timeout_s: float | None = None) -> tuple[int, bool]:
        """Run a command to its end; a timeout, a cancel or a full sink ends its whole tree.

        Returns:
            The exit code, negative for a signal, and whether it ran out of time.

        Raises:
            SandboxError: the container ended, or the engine does not do its part.
            OSError: what a sink raised.
        """
        output = _Output(command)
        work = asyncio.create_task(self._run(command, output))
        try:
            done, _ = await asyncio.wait({work}, timeout=timeout_s)
            if done:
                return work.result(), False
            await self._end(work, output)
            return work.result(), True
        except BaseException:
            with suppress(SandboxError):  # closing the sandbox ends it as well
                await self._end(work, output)
            raise
        finally:
            work.cancel()

    async def _run(self, command: Command, output: _Output) -> int:
        try:
            stream, ident = await self._start(command)
        except SandboxError:
            await self._supervisor.ask("count")  # says why, if the container ended
            raise
        try:
            await self._supervisor.unless_gone(_copied(command.stdin, stream, output))
        finally:
            stream.close()
        state = await self._engine.call(self._engine.api.exec_inspect, ident)
        # A container that is being killed takes its commands along: that is no exit code.
        _, refused = (await self._supervisor.ask("hits")).split()
        if output.started and not state["Running"]:
            return _exit_code(state["ExitCode"])
        if not output.started and int(refused):
            command.err(NO_PROCESS_LEFT)
            return CANNOT_START
        raise SandboxError(f"a command was lost or did not start: {output.text}")

    async def _start(self, command: Command) -> tuple[Stream, str]:
        created = await self._engine.call(
            self._engine.api.exec_create,
            self._container.name,
            ["sh", "-c", _WRAPPER, "sh", command.cwd, *command.argv],
            stdin=command.stdin is not None,
            user=self._container.user,
            environment=dict(command.env),
        )
        ident = created["Id"]
        return await self._engine.stream(f"/exec/{ident}/start", {"Detach": False}), ident

    async def _end(self, work: asyncio.Task[int], output: _Output) -> None:
        """End a command's tree, and wait for the rest of its output."""
        try:
            async with asyncio.timeout(KILL_LIMIT_S):
                await asyncio.wait({work, output.pid}, return_when=asyncio.FIRST_COMPLETED)
                if output.started:
                    await self._supervisor.ask(f"end {output.pid.result()}")
                await asyncio.wait({work})
        except TimeoutError:
            raise SandboxError(f"a command does not end within {KILL_LIMIT_S} s") from None
        finally:
            if work.done() and not work.cancelled():
                work.exception()  # marks it as seen


class _Output:
    """Sorts a command's frames: its number first, then its own output.

    Output that overtakes the number is held back. Without a number it is not the command's: it is
    the engine's, which says why nothing was started.
    """

    def __init__(self, command: Command) -> None:
        self._out, self._err = command.out, command.err
        self.pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._held = bytearray()
        self._line = bytearray()

    @property
    def started(self) -> bool:
        """Say whether the command was started."""
        return self.pid.done()

    @property
    def text(self) -> str:
        """Return what the engine said instead of starting it."""
        return self._held.decode(errors="replace").strip()

    def take(self, kind: int, chunk: bytes) -> None:
        """Take one frame, or a part of one."""
        if self.started:
            (self._err if kind == STDERR else self._out)(chunk)
        elif kind != STDERR:
            self._held += chunk
        else:
            self._line += chunk
            number, end, rest = self._line.partition(b"\n")
            if end:
                self.pid.set_result(int(number))
                self._give(rest)

    def _give(self, rest: bytearray) -> None:
        for sink, held in ((self._err, rest), (self._out, self._held)):
            if held:
                sink(bytes(held))
        self._held.clear()


async def _copied(stdin: BinaryIO | None, stream: Stream, output: _Output) -> None:
    """Copy input and output until the output ends."""
    feeding = asyncio.create_task(stream.feed(stdin)) if stdin else None
    try:
        async for kind, chunk in stream.frames():
            output.take(kind, chunk)
    finally:
        if feeding is not None:
            feeding.cancel()


def _exit_code(code: int) -> int:
    """Return the exit code; 128 and a signal's number, as init and shells have it, as -number."""
    return 128 - code if 128 < code <= 128 + 64 else code
