"""The sandbox interface: where a harness program runs. Backends live in builtin/ and plugins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from mixharness.component import Component, ConfigT
from mixharness.proxy.chat import ChatMessage
from mixharness.types import Limits, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What one rollout's sandbox holds."""

    rollout_id: str
    limits: Limits
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Relative path ("" is the workspace itself) to the host folder that is copied there, in order;
    each takes the place of what was there before. Links and device files are left out."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Relative path to text, written into the workspace after the folders."""
    program_path: Path | None = None
    """Host folder of the harness program, to be mounted read-only."""
    workspace: str = ""
    """Absolute path at which programs are to see the workspace; empty for the backend's own."""
    image: str = ""
    """Container image; empty for the backend's own."""
    network: bool = True
    """Whether the proxy can be reached from inside; a grader needs nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """One finished command."""

    exit_code: int
    """Negative: died of that signal."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


OpenWorkspace = Callable[[Mapping[str, Path]], AbstractAsyncContextManager["Sandbox"]]
ReadTranscript = Callable[[], Sequence[ChatMessage]]


class Workspace:
    """A read-only snapshot of a workspace, for verifiers, and what was said on the way to it.

    Attributes:
        path: the snapshot's root on the host.
    """

    def __init__(
        self,
        path: Path,
        open_sandbox: OpenWorkspace | None = None,
        read_transcript: ReadTranscript | None = None,
    ) -> None:
        self.path = path
        self._open_sandbox = open_sandbox
        self._read_transcript = read_transcript

    def transcript(self) -> Sequence[ChatMessage]:
        """Return what the main agent was told and said, oldest first; reads files.

        It is empty for an untouched workspace, and where nothing was recorded.
        """
        return self._read_transcript() if self._read_transcript else ()

    def sandbox(
        self, inject: Mapping[str, Path] | None = None
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox, as the task's was, around a copy of this snapshot.

        Nothing can be reached from it, and the agent's own is gone already. A sandbox that does
        not open is no fault of the grader's: the grading is repeated, then excluded.

        Args:
            inject: relative path to a host folder that replaces what the agent left there; how a
                grader gets in.

        Raises:
            RuntimeError: this snapshot was made without a sandbox backend.
        """
        if self._open_sandbox is None:
            raise RuntimeError("this workspace has no sandbox backend to open a sandbox with")
        return self._open_sandbox(inject or {})

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

    async def limit_hit(self) -> str:
        """Name the field of `Limits` at which a process, or all of the sandbox, was ended.

        Empty when none was, or when the backend cannot tell; the default cannot. Asked after the
        program has ended, also of a sandbox that raises at everything else: what is named is the
        policy's doing, and then so is a sandbox that is gone.
        """
        return ""


class SandboxBackend(Component[ConfigT], ABC):
    """Opens sandboxes. `start`, `admit` and `stop` frame a run; `open` comes in between."""

    proxy_host: str = "127.0.0.1"
    """Address of this machine at which programs in a sandbox find the proxy; set by `start`."""

    async def start(self) -> None:
        """Make what all sandboxes of a run share, e.g. a network.

        Raises:
            Exception: anything; the run does not start.
        """
        return None

    async def admit(self, port: int) -> None:
        """Let sandboxes reach this port of `proxy_host`, and no other."""
        return None

    async def stop(self) -> None:
        """Undo `start`; all sandboxes are closed. May be called twice, and without a start."""
        return None

    def validate(self, task: Task) -> None:
        """Check before a run that sandboxes can be what a task asks for; the default takes all.

        Raises:
            ValueError: they cannot, and what could.
        """
        return None

    @abstractmethod
    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox; leaving the context kills and removes all of it (rule 8)."""

    async def reap(self) -> int:
        """Remove what a crashed runner left behind; return how many sandboxes that were."""
        return 0
