"""Scoring a finished workspace, and whose fault it is when the verifier crashes.

Attribution is by replay (ARCHITECTURE section 7): once more on the same snapshot, then on the
untouched workspace of the task. Only a crash that this rollout's workspace causes is the policy's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from mixharness.errors import RolloutError, VerifierError, boundary
from mixharness.rollout.store import copy_of_workspace
from mixharness.rollout.types import Runner
from mixharness.sandbox import Workspace
from mixharness.types import Failure, FailureClass, FailureKind, Rollout, Score, Task

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader:
    """A task with its verifier, and how long one verdict may take."""

    runner: Runner
    task: Task

    async def grade(self, rollout: Rollout, workspace: Workspace | None) -> Rollout:
        """Return the rollout with its score, or with the failure that grading came to."""
        failure = rollout.failure
        kind = failure.failure_class if failure else None
        if kind in (FailureClass.INFRA, FailureClass.RUN):
            return rollout
        zero = kind is FailureClass.POLICY and self.runner.settings.on_limit == "zero"
        if kind is FailureClass.INTEGRITY or zero or workspace is None:
            return replace(rollout, score=Score(value=0.0))
        try:
            return replace(rollout, score=await self._score_twice(rollout, workspace))
        except RolloutError as exc:
            return await self._blame(rollout, str(exc))

    async def _score_twice(self, rollout: Rollout, workspace: Workspace) -> Score:
        with self._scratch(rollout) as folder:
            copy = Path(folder, "workspace")
            await asyncio.to_thread(copy_of_workspace, workspace.path, copy)
            try:
                return await self._score(rollout, Workspace(copy))
            except RolloutError as exc:
                log.warning("verifier_raised", rollout=rollout.id, error=str(exc))
        return await self._score(rollout, workspace)

    async def _blame(self, rollout: Rollout, error: str) -> Rollout:
        """Grade the untouched workspace: if that works, the policy broke the grader."""
        with self._scratch(rollout) as folder:
            await asyncio.to_thread(_write_files, Path(folder), self.task.files)
            try:
                await self._score(rollout, Workspace(Path(folder)))
            except RolloutError:
                failure = Failure(kind=FailureKind.JUDGE_UNAVAILABLE, detail=error)
                return replace(rollout, failure=failure)
        failure = Failure(kind=FailureKind.GRADER_BROKEN, detail=error)
        return replace(rollout, failure=failure, score=Score(value=0.0))

    def _scratch(self, rollout: Rollout) -> tempfile.TemporaryDirectory[str]:
        # Beside the rollout: a killed run leaves nothing in the system's temporary folder.
        return tempfile.TemporaryDirectory(
            prefix="grading-", dir=self.runner.store.path(rollout.id)
        )

    async def _score(self, rollout: Rollout, workspace: Workspace) -> Score:
        verifier = self.runner.verifiers[self.task.verifier]
        with boundary(VerifierError, f"verifier {self.task.verifier!r}"):
            async with asyncio.timeout(self.runner.settings.grade_limit_s):
                score = await verifier.score(self.task, rollout, workspace)
            if not isinstance(score, Score):
                raise TypeError(f"it returned {type(score).__name__}, not a Score")
        return score


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
