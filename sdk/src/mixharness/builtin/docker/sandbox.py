"""One open docker sandbox: commands, files and snapshots. Its container is container.py's."""

from __future__ import annotations

import asyncio
import errno
import io
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from mixharness.builtin.docker.archive import Spool, pack, unpack
from mixharness.builtin.docker.commands import Command, Commands
from mixharness.builtin.docker.config import HOME, PROGRAM
from mixharness.builtin.docker.container import Container
from mixharness.builtin.docker.engine import Engine
from mixharness.errors import SandboxError
from mixharness.sandbox import ExecResult, Sandbox, SandboxSpec, Workspace
from mixharness.snapshot import MIB

FILE_LIMIT_S = 30.0
ARCHIVE_LIMIT_S = 300.0
KILL_LIMIT_S = 10.0
_LOOK_S = 0.005
_MISSING = 3
_READ = f'[ -e "$1" ] || exit {_MISSING}; exec cat -- "$1"'
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && exec cat >"$1"'
_FILL = "umask 022; exec tar -xpof -"
# What the policy closed to itself is its own nevertheless, and graded.
_SNAPSHOT = "chmod -R u+rwX . 2>/dev/null; exec tar -cf - ."
_TAR_CODES = (0, 1, 2)
"""With 1 and 2 tar left something out that it could not read; the archive is whole."""


class _Tail:
    """Keeps the last `limit` bytes of an output: a program's result comes last."""

    def __init__(self, limit: int, on_chunk: Callable[[bytes], None] | None = None) -> None:
        self._limit = limit
        self._on_chunk = on_chunk
        self.data = bytearray()

    def __call__(self, chunk: bytes) -> None:
        self.data += chunk
        del self.data[: max(0, len(self.data) - self._limit)]
        if self._on_chunk is not None:
            self._on_chunk(chunk)


class DockerSandbox(Sandbox):
    """A container in use.

    A command sees the image's environment with HOME, TMPDIR and LANG, and what it is given. A
    program left in the background outlives its command, not the sandbox.
    """

    def __init__(self, engine: Engine, container: Container, snapshot_files: int) -> None:
        kind = container.kind
        self.workspace = kind.workspace
        self.home = HOME
        self.program_path = PROGRAM if kind.program else ""
        self._commands = Commands(engine, container)
        self._supervisor = container.supervisor
        self._limits = kind.limits
        self._snapshot_files = snapshot_files

    async def fill(self, spec: SandboxSpec) -> None:
        """Put the folders and files of a spec into the empty workspace.

        Raises:
            SandboxError: they do not fit, or lie outside.
        """
        if not spec.folders and not spec.files:
            return
        with tempfile.TemporaryFile() as archive:  # nothing of it is left, whatever happens
            await asyncio.to_thread(pack, spec, archive)
            result = await self._shell(_FILL, timeout_s=ARCHIVE_LIMIT_S, stdin=archive)
        if result.exit_code or result.timed_out:
            why = result.stderr.decode(errors="replace").strip() or f"code {result.exit_code}"
            raise SandboxError(f"the task's files cannot be put into the sandbox with tar: {why}")

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
        limit = self._limits.output_mb * MIB
        out, err = _Tail(limit, on_stdout), _Tail(limit)
        command = Command(argv=argv, env=env or {}, cwd=self._absolute(cwd), out=out, err=err)
        return await self._run(command, out, err, timeout_s)

    async def read(self, path: str) -> bytes:
        """Return a file; see `Sandbox.read`.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read, or not within 30 s.
        """
        result = await self._shell(_READ, self._absolute(path), timeout_s=FILE_LIMIT_S)
        if result.exit_code == _MISSING:
            raise FileNotFoundError(f"no such file: {path}")
        _check(result, path)
        if len(result.stdout) >= self._limits.output_mb * MIB:
            raise OSError(errno.EFBIG, "larger than output_mb", path)
        return result.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox.write`.

        Raises:
            OSError: it cannot be written.
        """
        absolute, stdin = self._absolute(path), io.BytesIO(data)
        _check(await self._shell(_WRITE, absolute, timeout_s=FILE_LIMIT_S, stdin=stdin), path)

    async def snapshot(self, target: Path) -> Workspace:
        """Copy the workspace; see `Sandbox.snapshot`."""
        max_mb, max_files = self._limits.disk_mb, self._snapshot_files
        argv, err = ["sh", "-c", _SNAPSHOT], _Tail(MIB)
        with tempfile.TemporaryFile() as archive:
            spool = Spool(archive, max_mb, max_files)
            command = Command(argv=argv, cwd=self.workspace, out=spool, err=err)
            code, timed_out = await self._commands.run(command, ARCHIVE_LIMIT_S)
            if timed_out or code not in _TAR_CODES:
                why = err.data.decode(errors="replace").strip() or f"code {code}"
                raise SandboxError(f"the workspace cannot be read with tar: {why}")
            archive.seek(0)
            try:
                await asyncio.to_thread(unpack, archive, target, max_mb, max_files)
            except tarfile.TarError as exc:
                raise SandboxError(f"the workspace's archive is broken: {exc}") from exc
        return Workspace(target)

    async def processes(self) -> int:
        """Return how many processes are alive, daemons included."""
        return int(await self._supervisor.ask("count"))

    async def kill(self) -> None:
        """Kill every process; files stay.

        Raises:
            SandboxError: some are alive after ten seconds.
        """
        try:
            async with asyncio.timeout(KILL_LIMIT_S):
                await self._supervisor.ask("endall")
                while await self.processes():
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise SandboxError("processes survive SIGKILL") from None

    async def limit_hit(self) -> str:
        """Name the limit that was hit, as the kernel counts it; see `Sandbox.limit_hit`.

        A container that ended has hit none: its first program survives what the others do.
        """
        if self._supervisor.gone.done():
            return ""
        killed, refused = (await self._supervisor.ask("hits")).split()
        return "memory_mb" if int(killed) else "processes" if int(refused) else ""

    def _absolute(self, path: str | None) -> str:
        return str(Path(self.workspace, path or ""))

    async def _shell(
        self, script: str, *argv: str, timeout_s: float, stdin: BinaryIO | None = None
    ) -> ExecResult:
        limit = self._limits.output_mb * MIB
        out, err = _Tail(limit), _Tail(limit)
        full = ["sh", "-c", script, "sh", *argv]
        command = Command(argv=full, cwd=self.workspace, out=out, err=err, stdin=stdin)
        return await self._run(command, out, err, timeout_s)

    async def _run(
        self, command: Command, out: _Tail, err: _Tail, timeout_s: float | None
    ) -> ExecResult:
        code, timed_out = await self._commands.run(command, timeout_s)
        return ExecResult(
            exit_code=code, stdout=bytes(out.data), stderr=bytes(err.data), timed_out=timed_out
        )


def _check(result: ExecResult, path: str) -> None:
    if result.timed_out:
        raise TimeoutError(f"{path}: not done within {FILE_LIMIT_S:.0f} s")
    if result.exit_code:
        raise OSError(result.stderr.decode(errors="replace").strip() or f"{path}: failed")
