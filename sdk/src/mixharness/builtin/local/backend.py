"""Opening, closing and reaping local sandboxes. What happens inside one is sandbox.py's."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import structlog

from mixharness.builtin.local import init
from mixharness.builtin.local.client import InitClient
from mixharness.builtin.local.owner import PREFIX, UidLease, lease_uid, reap, write_owner
from mixharness.builtin.local.sandbox import LocalPaths, LocalSandbox
from mixharness.builtin.local.snapshot import MIB, SnapshotLimits
from mixharness.component import ComponentConfig
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxBackend, SandboxSpec
from mixharness.types import Limits

CLOSE_LIMIT_S = 10.0

log = structlog.get_logger()


class LocalSandboxConfig(ComponentConfig):
    """Keys of `[sandbox] name = "local"`."""

    output_mb: int = 8
    """MiB kept of each of a command's two outputs; the beginning is dropped first."""
    snapshot_mb: int = 256
    """Largest workspace that is graded, in MiB."""
    snapshot_files: int = 20_000
    """Most files and folders in a workspace that is graded."""


class LocalSandboxBackend(SandboxBackend[LocalSandboxConfig]):
    """Runs each sandbox as a user of its own when started as root, else as this user."""

    name = "local"
    config_type = LocalSandboxConfig

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[LocalSandbox]:
        """Open a sandbox; its processes and its folder are gone when the context is left.

        Raises:
            SandboxError: a file lies outside the workspace, or the program cannot be reached.
        """
        root = os.geteuid() == 0
        if root and spec.program_path is not None:
            _check_reachable(spec.program_path)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            launched = _launch(folder, spec, lease_uid() if root else None)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        config = self.config
        limits = SnapshotLimits(
            max_mb=config.snapshot_mb, max_files=config.snapshot_files, uid=launched.uid
        )
        paths = LocalPaths(folder=folder, program=str(spec.program_path or ""))
        client = InitClient(launched.sock)
        sandbox = LocalSandbox(paths, client, config.output_mb * MIB, limits)
        try:
            await client.ready()
            yield sandbox
        finally:
            sandbox.close()
            await asyncio.shield(asyncio.to_thread(_end, launched.process, folder))

    async def reap(self) -> int:
        """Remove sandboxes whose runner is gone; return how many."""
        return await asyncio.to_thread(reap)


@dataclass(frozen=True, slots=True)
class _Launched:
    """A sandbox's init process, our end of its socket, and the user it runs commands as."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    uid: int


def _prepare(folder: Path, files: Mapping[str, str], uid: int | None) -> None:
    write_owner(folder, None)
    folder.chmod(0o711)
    paths = LocalPaths(folder=folder)
    paths.workspace.mkdir(mode=0o700)
    paths.home.mkdir(mode=0o700)
    (paths.home / "tmp").mkdir(mode=0o700)
    for name, text in files.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise SandboxError(f"workspace file {name!r} must be a relative path without '..'")
        file = paths.workspace / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    if uid is not None:
        for path in (paths.workspace, paths.home):
            for each in (path, *path.rglob("*")):
                os.chown(each, uid, uid)


def _launch(folder: Path, spec: SandboxSpec, lease: UidLease | None) -> _Launched:
    """Fill the folder and start the init process, which takes the lease over."""
    with lease.sock if lease else nullcontext():
        _prepare(folder, spec.files, lease.uid if lease else None)
        process, sock = _start_init(folder, spec.limits, lease)
    return _Launched(process, sock, lease.uid if lease else os.geteuid())


def _start_init(
    folder: Path, limits: Limits, lease: UidLease | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rlimits = [
        (resource.RLIMIT_AS, limits.memory_mb * MIB),
        (resource.RLIMIT_FSIZE, limits.file_mb * MIB),
        (resource.RLIMIT_CORE, 0),
    ]
    if lease is not None:  # as this user, it would count everything the user runs elsewhere
        rlimits.append((resource.RLIMIT_NPROC, limits.processes))
    uid = lease.uid if lease else None
    config = {"fd": theirs.fileno(), "folder": str(folder), "uid": uid, "rlimits": rlimits}
    argv = [sys.executable, "-I", "-S", "-E", str(init.__file__), json.dumps(config)]
    with (folder / "init.log").open("wb") as errors, theirs:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[theirs.fileno(), *([lease.sock.fileno()] if lease else [])],
            start_new_session=True,
        )
    write_owner(folder, process.pid)
    return process, ours


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the init process has killed and removed everything, and make sure of it."""
    try:
        process.wait(CLOSE_LIMIT_S)
    except subprocess.TimeoutExpired:
        log.warning("sandbox_init_hung", folder=str(folder), pid=process.pid)
        process.kill()
        process.wait()
    if folder.exists():
        init.remove(str(folder))


def _check_reachable(program: Path) -> None:
    for path in (program, *program.parents):
        if not path.stat().st_mode & 0o001:
            raise SandboxError(
                f"the sandbox's user cannot enter {path}, so it cannot run {program}; install "
                "harness programs in a folder open to all users (set MIXHARNESS_CACHE)"
            )
