"""The sandbox interface: where a harness program runs. Backends live in builtin/ and plugins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from mixharness.component import Component, ConfigT
from mixharness.types import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What one rollout's sandbox holds."""

    rollout_id: str
    files: Mapping[str, str]
    """Relative path to text, written into the workspace."""
    limits: Limits
    program_path: Path | None = None
    """Host folder of the harness program, to be mounted read-only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """One finished command."""

    exit_code: int
    """Negative: died of that signal."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class Workspace:
    """A read-only snapshot of a workspace, for verifiers.

    Attributes:
        path: the snapshot's root on the host.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> str | None:
        """Return a file's text (UTF-8, bad bytes replaced), or None when there is none."""
        file = self.path / name
        # Links were left out of the snapshot, so nothing here can point outside it.
        if not file.is_file():
            return None
        return file.read_bytes().decode("utf-8", errors="replace")

    def list(self) -> list[str]:
        """Return the relative paths of all files, sorted."""
        files = (p for p in self.path.rglob("*") if p.is_file())
        return sorted(p.relative_to(self.path).as_posix() for p in files)


class Sandbox(ABC):
    """One open sandbox. It belongs to its context manager, which releases it on every path."""

    workspace: str
    """Path of the workspace as programs in the sandbox see it."""
    home: str
    """A fresh private folder for the program's own files, outside the workspace."""
    program_path: str
    """Where the harness program is mounted; empty when there is none."""

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command with stdin closed and only `env`; cwd defaults to the workspace.

        A timeout or a cancel kills the whole process group. `on_stdout` is called in the event
        loop with each chunk of stdout as it arrives; the result holds all of it nevertheless.
        """

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """Return a file; relative paths are the workspace's.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes) -> None:
        """Write a file and its missing folders, owned by the sandbox's user."""

    @abstractmethod
    async def snapshot(self, target: Path) -> Workspace:
        """Copy the workspace to `target` on the host; links and device files are left out.

        Raises:
            OSError: with `errno.EFBIG`, the workspace is larger than the backend allows.
        """

    @abstractmethod
    async def processes(self) -> int:
        """Return how many processes are alive in the sandbox."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill every process in the sandbox; files stay."""


class SandboxBackend(Component[ConfigT], ABC):
    """Opens sandboxes."""

    @abstractmethod
    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox; leaving the context kills and removes all of it (rule 8)."""

    async def reap(self) -> int:
        """Remove what a crashed runner left behind; return how many sandboxes that were."""
        return 0
