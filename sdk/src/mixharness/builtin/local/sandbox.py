"""One open sandbox behind an init process: commands, files, snapshots. backend.py opens it.

Files are read and written by commands that run as the sandbox's user, never by the runner, whose
rights would let a link in the workspace point at anything on the host.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mixharness.builtin.local.client import Capture, InitClient
from mixharness.errors import SandboxError
from mixharness.sandbox import ExecResult, Sandbox, Workspace
from mixharness.snapshot import MIB, SnapshotLimits, copy_tree

PIPE_GRACE_S = 0.2
FILE_TIMEOUT_S = 30.0
MISSING = 3
READ_SCRIPT = f'[ -e "$1" ] || exit {MISSING}; exec cat -- "$1"'
WRITE_SCRIPT = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the parts of a sandbox lie; all but `source` as programs in it see them."""

    workspace: str
    home: str
    tmp: str
    program: str
    source: Path
    """The workspace as the runner sees it."""
    label: str
    """Put into every command's environment, so that a reaper finds what it started."""


class LocalSandbox(Sandbox):
    """Runs commands through the sandbox's init process.

    On top of PATH, HOME, TMPDIR and LANG a command sees only the `env` it is given. A program left
    in the background outlives its command, not the sandbox.
    """

    def __init__(
        self, places: Places, client: InitClient, output_mb: int, limits: SnapshotLimits
    ) -> None:
        self.workspace = places.workspace
        self.home = places.home
        self.program_path = places.program
        self._places = places
        self._client = client
        self._output_bytes = output_mb * MIB
        self._limits = limits
        self._captures: list[Capture] = []

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command; see `Sandbox.exec`. Output beyond `output_mb` loses its beginning."""
        request = {"argv": list(argv), "env": self._env(env or {}), "cwd": self._absolute(cwd)}
        with Path(os.devnull).open("rb") as stdin:
            return await self._run(request, stdin.fileno(), timeout_s, on_stdout)

    async def read(self, path: str) -> bytes:
        """Return a file; see `Sandbox.read`.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read, or not within 30 s.
        """
        absolute = self._absolute(path)
        argv = ["sh", "-c", READ_SCRIPT, "sh", absolute]
        result = await self.exec(argv, timeout_s=FILE_TIMEOUT_S)
        if result.exit_code == MISSING:
            raise FileNotFoundError(f"no such file: {path}")
        _check(result, path)
        if len(result.stdout) >= self._output_bytes:
            raise OSError(errno.EFBIG, "larger than output_mb", path)
        return result.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox.write`.

        Raises:
            OSError: it cannot be written.
        """
        argv = ["sh", "-c", WRITE_SCRIPT, "sh", self._absolute(path)]
        request = {"argv": argv, "env": self._env({}), "cwd": self.workspace}
        with _memory_file(data) as stdin:
            _check(await self._run(request, stdin, FILE_TIMEOUT_S), path)

    async def snapshot(self, target: Path) -> Workspace:
        """Copy the workspace; see `Sandbox.snapshot`."""
        if self._client.closed:
            raise SandboxError("the sandbox is gone, so it cannot be copied")
        await in_thread(partial(copy_tree, self._places.source, target, self._limits))
        return Workspace(target)

    async def processes(self) -> int:
        """Return how many processes are alive, daemons included."""
        _, count = self._client.ask("count")
        return await count

    async def kill(self) -> None:
        """Kill every process; files stay."""
        _, done = self._client.ask("killall")
        await done

    def close(self) -> None:
        """Let go of the init process, which ends everything; may be called twice."""
        self._client.close()
        for capture in self._captures:
            capture.close()
        self._captures.clear()

    def _absolute(self, path: str | None) -> str:
        return str(Path(self.workspace, path or ""))

    def _env(self, env: Mapping[str, str]) -> dict[str, str]:
        base = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": self.home,
            "TMPDIR": self._places.tmp,
            "LANG": "C.UTF-8",
        }
        return base | dict(env) | {"MIXHARNESS_SANDBOX": self._places.label}

    async def _run(
        self,
        request: Mapping[str, object],
        stdin: int,
        timeout_s: float | None,
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        async with self._capture(on_stdout) as out, self._capture() as err:
            with _memory_file(json.dumps(request).encode()) as description:
                fds = (description, stdin, out.write_end, err.write_end)
                try:
                    ident, finished = self._client.ask("run", fds=fds)
                finally:
                    out.close_write_end()
                    err.close_write_end()
            timed_out = await self._wait(ident, finished, timeout_s)
            await _drained(out, err)
            return ExecResult(
                exit_code=finished.result(),
                stdout=bytes(out.data),
                stderr=bytes(err.data),
                timed_out=timed_out,
            )

    async def _wait(
        self, ident: str, finished: asyncio.Future[int], timeout_s: float | None
    ) -> bool:
        """Wait for a command; kill it on timeout or cancel. Return whether it timed out."""
        try:
            done, _ = await asyncio.wait({finished}, timeout=timeout_s)
            if done:
                return False
        except asyncio.CancelledError:
            with suppress(SandboxError):  # closing kills as well
                self._client.ask("kill", ident)
            raise
        self._client.ask("kill", ident)
        await finished
        return True

    @asynccontextmanager
    async def _capture(
        self, on_chunk: Callable[[bytes], None] | None = None
    ) -> AsyncIterator[Capture]:
        """Open a pipe; one that a background program still holds is read until the end."""
        capture = Capture(self._output_bytes, on_chunk)
        try:
            yield capture
        except BaseException:
            capture.close()
            raise
        self._captures = [kept for kept in self._captures if not kept.eof.is_set()]
        if not capture.eof.is_set():
            self._captures.append(capture)


async def in_thread(work: Callable[[], None]) -> None:
    """Run blocking work on a sandbox's files; a cancel waits for its end.

    Nothing stops a thread, and the sandbox must not be closed, and its descriptors be given to
    another, while one still works in it.
    """
    running = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


async def _drained(*captures: Capture) -> None:
    waits = [asyncio.ensure_future(capture.eof.wait()) for capture in captures]
    _, late = await asyncio.wait(waits, timeout=PIPE_GRACE_S)
    for wait in late:
        wait.cancel()


def _check(result: ExecResult, path: str) -> None:
    if result.timed_out:
        raise TimeoutError(f"{path}: not done within {FILE_TIMEOUT_S:.0f} s")
    if result.exit_code:
        raise OSError(result.stderr.decode(errors="replace").strip() or f"{path}: failed")


@contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    """Yield the descriptor of an anonymous file with `data`, at its beginning."""
    fd = os.memfd_create("mixharness")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
