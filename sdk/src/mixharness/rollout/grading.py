"""Scoring a finished workspace, and whose fault it is when the verifier crashes.

Attribution is by replay (ARCHITECTURE section 7): once more on the same snapshot, then on the
untouched workspace of the task. Only a crash that this rollout's workspace causes is the policy's.
A sandbox that fails meanwhile is nobody's crash: that is tried again, and never blamed on a policy.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from mixharness.errors import RolloutError, SandboxError, VerifierError, boundary
from mixharness.proxy.chat import ChatMessage
from mixharness.proxy.log import read_bodies
from mixharness.rollout.sandboxes import limit_hit, opened
from mixharness.rollout.store import copy_of_workspace
from mixharness.rollout.types import RolloutRequest, Runner
from mixharness.sandbox import Sandbox, SandboxSpec, Workspace
from mixharness.snapshot import copy_tree
from mixharness.tree.conversation import read_conversation
from mixharness.types import Failure, FailureClass, FailureKind, Rollout, Score, Task

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader:
    """A request's task with its verifier, and how long one verdict may take."""

    runner: Runner
    request: RolloutRequest

    @property
    def task(self) -> Task:
        """Return what is graded."""
        return self.request.task

    async def grade(self, rollout: Rollout, workspace: Workspace | None) -> Rollout:
        """Return the rollout with its score, or with the failure that grading came to."""
        failure = rollout.failure
        kind = failure.failure_class if failure else None
        if kind in (FailureClass.INFRA, FailureClass.RUN):
            return rollout
        zero = kind is FailureClass.POLICY and self.runner.settings.on_limit == "zero"
        if kind is FailureClass.INTEGRITY or zero or workspace is None:
            return replace(rollout, score=Score(value=0.0))
        snapshot = partial(copy_of_workspace, workspace.path)
        try:
            score = await self._replayed(rollout, snapshot)
        except SandboxError as exc:  # no verdict: whatever the control said would be luck
            failure = Failure(kind=FailureKind.JUDGE_UNAVAILABLE, detail=str(exc))
            return replace(rollout, failure=failure)
        except RolloutError as exc:
            return await self._blame(rollout, str(exc))
        return replace(rollout, score=score)

    async def _replayed(self, rollout: Rollout, fill: Callable[[Path], None]) -> Score:
        """Score, and once more where the verifier raised."""
        try:
            return await self._score(rollout, fill)
        except VerifierError as exc:
            log.warning("verifier_raised", rollout=rollout.id, error=str(exc))
        return await self._score(rollout, fill)

    async def _blame(self, rollout: Rollout, error: str) -> Rollout:
        """Grade the untouched workspace: if that works, the policy broke the grader."""
        # Nothing that the policy said, either: that may be what the grader chokes on.
        untouched = replace(rollout, calls=(), exit=None)
        try:
            await self._score(untouched, partial(_write_workspace, self.task))
        except RolloutError:
            failure = Failure(kind=FailureKind.JUDGE_UNAVAILABLE, detail=error)
            return replace(rollout, failure=failure)
        failure = Failure(kind=FailureKind.GRADER_BROKEN, detail=error)
        return replace(rollout, failure=failure, score=Score(value=0.0))

    async def _score(self, rollout: Rollout, fill: Callable[[Path], None]) -> Score:
        """Score a fresh copy of a workspace; a sandbox that fails is tried again, with backoff."""
        settings = self.runner.settings
        for attempt in range(settings.max_infra_retries):
            try:
                return await self._score_once(rollout, fill)
            except SandboxError as exc:
                log.warning("grading_sandbox_failed", rollout=rollout.id, error=str(exc))
            await asyncio.sleep(settings.backoff_s * 2**attempt)
        return await self._score_once(rollout, fill)

    async def _score_once(self, rollout: Rollout, fill: Callable[[Path], None]) -> Score:
        # Beside the rollout: a killed run leaves nothing in the system's temporary folder.
        beside = self.runner.store.path(rollout.id)
        with tempfile.TemporaryDirectory(prefix="grading-", dir=beside) as scratch:
            folder = Path(scratch, "workspace")
            await asyncio.to_thread(fill, folder)
            sandboxes = _Sandboxes(self.runner, self.request, folder)
            workspace = Workspace(folder, sandboxes.open, partial(self._transcript, rollout))
            with sandboxes.watched():
                return await self._verdict(rollout, workspace)

    async def _verdict(self, rollout: Rollout, workspace: Workspace) -> Score:
        verifier = self.runner.verifiers[self.task.verifier]
        with boundary(VerifierError, f"verifier {self.task.verifier!r}"):
            async with asyncio.timeout(self.runner.settings.grade_limit_s):
                score = await verifier.score(self.task, rollout, workspace)
            if not isinstance(score, Score):
                raise TypeError(f"it returned {type(score).__name__}, not a Score")
        return score

    def _transcript(self, rollout: Rollout) -> Sequence[ChatMessage]:
        if not rollout.calls:
            return ()
        bodies = read_bodies(self.runner.store.path(rollout.id))
        return read_conversation(rollout.calls, bodies)


class _Sandboxes:
    """The fresh sandboxes of one verdict. What goes wrong with one is no verdict."""

    def __init__(self, runner: Runner, request: RolloutRequest, folder: Path) -> None:
        self._backend = runner.sandbox
        self._request = request
        self._folder = folder
        self._trouble: SandboxError | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Frame a verdict; what a sandbox raised counts, whatever the verifier made of it.

        Raises:
            SandboxError: a sandbox did not open in time, failed, or did not close.
        """
        try:
            yield
        except VerifierError:
            if self._trouble is None:
                raise
        if self._trouble is not None:
            raise self._trouble

    @asynccontextmanager
    async def open(self, inject: Mapping[str, Path]) -> AsyncIterator[Sandbox]:
        """Open the task's own sandbox, around the snapshot, with nobody to talk to."""
        task, limits = self._request.task, self._request.limits
        spec = SandboxSpec(
            rollout_id=f"{self._request.id}-grading",
            # As much again as the agent had: a disk that it filled keeps no grader out.
            limits=replace(limits, disk_mb=2 * limits.disk_mb),
            folders={"": self._folder, **inject},
            workspace=task.workspace,
            image=task.image,
            network=False,
        )
        late = SandboxError(f"sandbox {self._backend.name!r} did not open in time")
        self._trouble = self._trouble or late
        try:
            async with opened(self._backend, spec) as sandbox:
                self._trouble = None if self._trouble is late else self._trouble
                async with _attributed(sandbox):
                    yield sandbox
        except SandboxError as exc:
            self._trouble = exc
            raise


@asynccontextmanager
async def _attributed(sandbox: Sandbox) -> AsyncIterator[None]:
    """Make a sandbox that failed at a limit the verifier's trouble: replay and control decide."""
    try:
        yield
    except SandboxError as exc:
        limit = await limit_hit(sandbox)
        if not limit:
            raise
        raise VerifierError(f"the grading sandbox hit its limit {limit}: {exc}") from exc


def _write_workspace(task: Task, folder: Path) -> None:
    folder.mkdir()
    if task.folder is not None:
        copy_tree(task.folder, folder)
    for name, text in task.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
