"""The verifier `office`: the workspace must be what a careful clerk would leave, and no more."""

from mixharness import ComponentConfig, Rollout, Score, Task, Verifier, Workspace


class OfficeVerifier(Verifier[ComponentConfig]):
    """Score 1 when exactly the expected files are there with the expected words, else 0."""

    name = "office"

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Compare all visible files; a line for every folder is as wrong as none."""
        found = {
            name: (workspace.read(name) or "").split()
            for name in workspace.list()
            if not name.startswith(".")  # programs keep notes of their own there
        }
        expected = {name: text.split() for name, text in task.answer["files"].items()}
        return Score(value=float(found == expected), detail={"files": sorted(found)})
