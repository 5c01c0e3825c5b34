"""The verifier interface: score a finished workspace. Grading order and retries are rollout/'s."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mixharness.component import Component, ConfigT
from mixharness.sandbox import Workspace
from mixharness.types import Rollout, Score, Task


class Verifier(Component[ConfigT], ABC):
    """Scores what a rollout left behind. It never runs inside the agent's sandbox (rule 11)."""

    @abstractmethod
    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Return a score in [0, 1] for the snapshot.

        Called once per rollout after the sandbox is gone, in the runner's process. A raise is
        repeated on the same snapshot, then attributed (ARCHITECTURE section 7).
        """

    async def validate(self, task: Task) -> None:
        """Check that a task can be graded; the default accepts all.

        Raises:
            ValueError: the task cannot be graded, and why.
        """
