"""The verifier `office_partial`: a third of a point for each thing that is right."""

from __future__ import annotations

from mixharness import ComponentConfig, Rollout, Score, Task, Verifier, Workspace
from mixharness_office.words import REGISTER


class OfficePartialVerifier(Verifier[ComponentConfig]):
    """Score the shares of the work that are done: the files, the subject, the folder.

    Small groups of a weak policy seldom hold a success and a failure; with part marks they differ.
    A run file puts it in the place of `office` by the label that tasks ask for.
    """

    name = "office_partial"

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Give a third each for exactly the expected files, the first word and the second word."""
        expected = {name: text.split() for name, text in task.answer["files"].items()}
        found = {
            name: (workspace.read(name) or "").split()
            for name in workspace.list()
            if not name.startswith(".")
        }
        kept = all(found.get(name) == text for name, text in expected.items() if name != REGISTER)
        words = found.get(REGISTER, [])
        words = words if len(words) <= 2 else []  # a line for every folder is no answer
        right = {
            "files": kept and found.keys() == expected.keys() and len(words) == 2,
            "subject": words[:1] == expected[REGISTER][:1],
            "folder": words[1:2] == expected[REGISTER][1:],
        }
        return Score(value=sum(right.values()) / len(right), detail=right)
