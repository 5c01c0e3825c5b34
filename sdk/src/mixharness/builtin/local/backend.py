"""Opening, closing and reaping local sandboxes. What happens inside one is sandbox.py's."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from mixharness.builtin.local import init
from mixharness.builtin.local.client import InitClient
from mixharness.builtin.local.launch import (
    PYTHON_FLAGS,
    Launched,
    launch,
    rlimits,
    why_not_ready,
)
from mixharness.builtin.local.owner import PREFIX, UidLease, lease_uid, reap, write_owner
from mixharness.builtin.local.sandbox import LocalSandbox, Places
from mixharness.component import ComponentConfig
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxBackend, SandboxSpec
from mixharness.snapshot import SnapshotLimits, fill
from mixharness.types import Task


class LocalSandboxConfig(ComponentConfig):
    """Keys of `[sandbox] name = "local"`."""

    snapshot_files: int = 20_000
    """Most files and folders in a workspace that is graded."""


class LocalSandboxBackend(SandboxBackend[LocalSandboxConfig]):
    """Runs each sandbox as a user of its own when started as root, else as this user."""

    name = "local"
    config_type = LocalSandboxConfig

    def validate(self, task: Task) -> None:
        """Refuse what takes a file system of its own.

        Raises:
            ValueError: the task names an image or the path of its workspace.
        """
        if task.image:
            raise ValueError(
                f"the local sandbox has no images, and the task asks for {task.image!r}; "
                "use the docker sandbox"
            )
        if task.workspace:
            raise ValueError(
                f"the local sandbox cannot put a workspace at {task.workspace!r}; "
                "use the docker or the bubblewrap sandbox"
            )

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
            lease = lease_uid() if root else None
            with lease.sock if lease else nullcontext():
                _prepare(folder, spec, lease)
                launched = _launch(folder, spec, lease)
        except BaseException:
            init.remove(str(folder))
            raise
        limits = SnapshotLimits(
            max_mb=spec.limits.disk_mb,
            max_files=self.config.snapshot_files,
            uid=lease.uid if lease else os.geteuid(),
        )
        client = InitClient(launched.sock)
        sandbox = LocalSandbox(_places(folder, spec), client, spec.limits.output_mb, limits)
        try:
            await _ready(client, folder)
            yield sandbox
        finally:
            sandbox.close()
            await asyncio.shield(asyncio.to_thread(_end, launched, folder))

    async def reap(self) -> int:
        """Remove sandboxes whose runner is gone; return how many."""
        return await asyncio.to_thread(reap)


def _places(folder: Path, spec: SandboxSpec) -> Places:
    return Places(
        workspace=f"{folder}/workspace",
        home=f"{folder}/home",
        tmp=f"{folder}/home/tmp",
        program=str(spec.program_path or ""),
        source=folder / "workspace",
        label=str(folder),
    )


def _prepare(folder: Path, spec: SandboxSpec, lease: UidLease | None) -> None:
    write_owner(folder, None)
    folder.chmod(0o711)
    places = _places(folder, spec)
    for name in (places.workspace, places.home, places.tmp):
        Path(name).mkdir(mode=0o700)
    fill(places.source, spec)
    if lease is not None:
        for path in (places.source, Path(places.home)):
            for each in (path, *path.rglob("*")):
                os.chown(each, lease.uid, lease.uid)


def _launch(folder: Path, spec: SandboxSpec, lease: UidLease | None) -> Launched:
    config = {
        "folder": str(folder),
        "uid": lease.uid if lease else None,
        # As this user, it would count everything that the user runs elsewhere.
        "rlimits": rlimits(spec.limits, count_processes=lease is not None),
        "ports": [],
    }
    with (folder / "init.log").open("wb") as errors:
        command = [sys.executable, *PYTHON_FLAGS, str(init.__file__)]
        launched = launch(command, config, lease, errors)
    write_owner(folder, launched.process.pid)
    return launched


async def _ready(client: InitClient, folder: Path) -> None:
    try:
        await client.ready()
    except SandboxError as exc:
        raise why_not_ready("the sandbox did not start", folder / "init.log") from exc


def _end(launched: Launched, folder: Path) -> None:
    launched.end()
    if folder.exists():
        init.remove(str(folder))


def _check_reachable(program: Path) -> None:
    for path in (program, *program.parents):
        if not path.stat().st_mode & 0o001:
            raise SandboxError(
                f"the sandbox's user cannot enter {path}, so it cannot run {program}; install "
                "harness programs in a folder open to all users (set MIXHARNESS_CACHE)"
            )
