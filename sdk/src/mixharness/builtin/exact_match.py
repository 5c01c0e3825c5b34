"""The `exact_match` verifier: one file must hold one text. No partial credit lives here."""

from __future__ import annotations

from mixharness.component import ComponentConfig
from mixharness.sandbox import Workspace
from mixharness.types import Rollout, Score, Task
from mixharness.verifier import Verifier


class ExactMatchConfig(ComponentConfig):
    """Keys of `[[verifier]] name = "exact_match"`."""

    file: str = "answer.txt"
    """Workspace file that must hold the answer."""


class ExactMatch(Verifier[ExactMatchConfig]):
    """Scores 1 when the file equals `task.answer["text"]` but for outer white space, else 0."""

    name = "exact_match"
    config_type = ExactMatchConfig

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Compare the file with the answer."""
        found = workspace.read(self.config.file)
        wanted = str(task.answer["text"]).strip()
        return Score(value=float(found is not None and found.strip() == wanted))

    async def validate(self, task: Task) -> None:
        """Refuse a task without an answer text."""
        if "text" not in task.answer:
            raise ValueError(f'task {task.id!r} has no answer["text"], which exact_match needs')
