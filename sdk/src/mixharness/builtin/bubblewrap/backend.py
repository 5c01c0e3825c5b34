"""Opening and closing bubblewrap sandboxes. What happens inside one is local/sandbox.py's."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO

from mixharness.builtin.bubblewrap.command import PROGRAM_PATH, command, find_bwrap
from mixharness.builtin.bubblewrap.forward import forwarding
from mixharness.builtin.bubblewrap.furnish import (
    HOME,
    TMP,
    WORKSPACE,
    below,
    check_workspace,
    furnish,
)
from mixharness.builtin.local.client import InitClient
from mixharness.builtin.local.launch import Launched, launch, rlimits, why_not_ready
from mixharness.builtin.local.owner import lease_uid
from mixharness.builtin.local.sandbox import LocalSandbox, Places, in_thread
from mixharness.component import ComponentConfig
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxBackend, SandboxSpec
from mixharness.snapshot import SnapshotLimits
from mixharness.types import Limits, Task


class BubblewrapConfig(ComponentConfig):
    """Keys of `[sandbox] name = "bubblewrap"`."""

    folders: tuple[Path, ...] = ()
    """Host folders besides /usr that programs see, read-only, at the same path (e.g. /opt)."""
    snapshot_files: int = 20_000
    """Most files and folders in a workspace that is graded."""


class BubblewrapBackend(SandboxBackend[BubblewrapConfig]):
    """Runs each sandbox in namespaces of its own; nothing of it lies on the machine's disk.

    All of it ends with its first process, which ends with the runner, so there is nothing to reap.
    """

    name = "bubblewrap"
    config_type = BubblewrapConfig

    def __init__(self, config: BubblewrapConfig) -> None:
        super().__init__(config)
        self._ports: list[int] = []

    async def start(self) -> None:
        """Open a sandbox on trial.

        Raises:
            SandboxError: there is no bwrap, or this machine lets it make no namespaces.
        """
        trial = SandboxSpec(rollout_id="trial", limits=Limits())
        async with self.open(trial):
            pass

    async def admit(self, port: int) -> None:
        """Let sandboxes opened from now on reach this port."""
        self._ports.append(port)

    async def stop(self) -> None:
        """Forget the admitted ports."""
        self._ports.clear()

    def validate(self, task: Task) -> None:
        """Refuse images, and workspace paths that are the system's.

        Raises:
            ValueError: the task asks for one.
        """
        if task.image:
            raise ValueError(
                f"the bubblewrap sandbox has no images, and the task asks for {task.image!r}; "
                "use the docker sandbox"
            )
        if task.workspace:
            check_workspace(task.workspace)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[LocalSandbox]:
        """Open a sandbox; all of it is gone when the context is left.

        Raises:
            SandboxError: bwrap does not start, or what the spec holds does not fit.
        """
        async with AsyncExitStack() as stack:
            errors: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            launched, uid = self._launch(spec, errors)
            stack.push_async_callback(_end, launched)
            client = InitClient(launched.sock)
            stack.callback(client.close)
            await _ready(client, errors)
            root, *listening = client.handed_out
            root_path = Path(f"/proc/self/fd/{root}")
            await stack.enter_async_context(forwarding(listening))
            await in_thread(partial(furnish, root_path, spec, uid))
            limits = SnapshotLimits(
                max_mb=spec.limits.disk_mb, max_files=self.config.snapshot_files, uid=uid
            )
            places = _places(spec, root_path)
            sandbox = LocalSandbox(places, client, spec.limits.output_mb, limits)
            stack.callback(sandbox.close)
            yield sandbox

    def _launch(self, spec: SandboxSpec, errors: IO[bytes]) -> tuple[Launched, int]:
        """Start a sandbox's process 1; return it and the user it runs commands as."""
        root = os.geteuid() == 0
        words = command(find_bwrap(), spec, root=root, folders=self.config.folders)
        lease = lease_uid() if root else None
        config = {
            "folder": "",
            "uid": lease.uid if lease else None,
            # Counted within the user, or within the user namespace.
            "rlimits": rlimits(spec.limits, count_processes=True),
            "ports": self._ports if spec.network else [],
        }
        with lease.sock if lease else nullcontext():
            launched = launch(words, config, lease, errors)
        return launched, lease.uid if lease else os.geteuid()


async def _ready(client: InitClient, errors: IO[bytes]) -> None:
    try:
        await client.ready()
    except SandboxError as exc:
        errors.seek(0)
        what = (
            "bwrap made no sandbox (may this user make user namespaces? see "
            "user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns)"
        )
        raise why_not_ready(what, errors.read()) from exc


async def _end(launched: Launched) -> None:
    await asyncio.shield(asyncio.to_thread(launched.end))


def _places(spec: SandboxSpec, root: Path) -> Places:
    workspace = spec.workspace or WORKSPACE
    return Places(
        workspace=workspace,
        home=HOME,
        tmp=TMP,
        program=PROGRAM_PATH if spec.program_path else "",
        source=below(root, workspace),
        label="bubblewrap",
    )
