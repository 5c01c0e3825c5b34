"""Opening and reaping docker sandboxes. What is done in one is sandbox.py's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import structlog

from mixharness.builtin.docker.config import (
    HOME,
    PROGRAM,
    TMP,
    WORKSPACE,
    DockerSandboxConfig,
    Kind,
)
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxBackend, SandboxSpec
from mixharness.types import Task

if TYPE_CHECKING:  # importing the docker package takes a while, and not every run needs it
    from mixharness.builtin.docker.sandbox import DockerSandbox
    from mixharness.builtin.docker.shared import Shared

_CLOSED = (PROGRAM, "/proc", "/sys", "/dev", "/sbin")

log = structlog.get_logger()


class DockerSandboxBackend(SandboxBackend[DockerSandboxConfig]):
    """Runs each sandbox as a container of its own, on one network per run."""

    name = "docker"
    config_type = DockerSandboxConfig

    def __init__(self, config: DockerSandboxConfig) -> None:
        super().__init__(config)
        self._shared: Shared | None = None
        self._seen: set[str] = set()

    async def start(self) -> None:
        """Make the run's network and close it to all but what `admit` opens.

        Raises:
            SandboxError: there is no engine on this machine, or no right to set firewall rules.
            ValueError: a place in `egress` cannot be found.
        """
        from mixharness.builtin.docker.shared import open_shared

        self._shared = await open_shared(self.config)
        self.proxy_host = self._shared.network.gateway

    async def admit(self, port: int) -> None:
        """Let sandboxes reach this port of the network's gateway, and no other."""
        await self._started().admit(port)

    async def stop(self) -> None:
        """Remove the network, and every container that is left on it."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()

    def validate(self, task: Task) -> None:
        """Check that a task's image is there, and that its workspace can stand where it says.

        Raises:
            ValueError: not so, and how to get the image.
        """
        check_workspace(task.workspace or WORKSPACE)
        image = task.image or self.config.image
        if image not in self._seen:
            from mixharness.builtin.docker.engine import check_image

            check_image(image)
            self._seen.add(image)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[DockerSandbox]:
        """Open a sandbox; its container is gone when the context is left.

        Raises:
            SandboxError: the backend is not started, the image is not there, the files do not
                fit, or the engine does not answer.
        """
        from mixharness.builtin.docker.container import remove
        from mixharness.builtin.docker.sandbox import DockerSandbox

        shared = self._started()
        kind = self._kind(spec)
        container = await shared.pool.take(kind)
        try:
            sandbox = DockerSandbox(shared.engine, container, self.config.snapshot_files)
            await sandbox.fill(spec)
            shared.pool.refill(kind)  # not before: starting another one would slow this one down
            yield sandbox
        finally:
            await remove(shared.engine, container)

    async def reap(self) -> int:
        """Remove what crashed runners left; return how many containers that were."""
        from mixharness.builtin.docker.reaper import reap

        try:
            return await reap()
        except SandboxError as exc:  # start() says it to whoever needs the engine
            log.warning("docker_not_reaped", error=str(exc))
            return 0

    async def filled(self) -> None:
        """Wait until the pool is full, or cannot be filled."""
        await self._started().pool.filled()

    def _started(self) -> Shared:
        if self._shared is None:
            raise SandboxError("the docker sandbox is not started: call `start` before `open`")
        return self._shared

    def _kind(self, spec: SandboxSpec) -> Kind:
        workspace = spec.workspace or WORKSPACE
        check_workspace(workspace)
        return Kind(
            image=spec.image or self.config.image,
            program=spec.program_path,
            workspace=workspace,
            network=spec.network,
            limits=spec.limits,
        )


def check_workspace(workspace: str) -> None:
    """Check that a workspace can stand at this path of a container.

    Raises:
        ValueError: it cannot, and why.
    """
    path = PurePosixPath(workspace)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise ValueError(f"workspace {workspace!r} must be an absolute path below /")
    closed = any(path.is_relative_to(each) for each in _CLOSED)
    if closed or any(PurePosixPath(each).is_relative_to(path) for each in (HOME, TMP, *_CLOSED)):
        raise ValueError(f"workspace {workspace!r} is a place that has another use")
