"""Which groups each step took and dropped, on disk, for a run that is killed (rule 10)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from mixharness.rollout.store import write_atomically
from mixharness_trainer.planned_group import PlannedGroup


class Taken(BaseModel):
    """`ahead/<step>.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    groups: dict[int, tuple[str, ...]]
    """Number in the plan of each group that was trained on, and its rollouts."""
    stale: tuple[int, ...]
    """Numbers of those that were dropped since the step before."""


class AheadJournal:
    """The `ahead/` folder of a run. A step is noted before its update."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "ahead"

    def note(
        self, step: int, chosen: Sequence[PlannedGroup], stale: Sequence[PlannedGroup]
    ) -> None:
        """Write a step's groups."""
        groups = {group.number: tuple(each.id for each in group.rollouts) for group in chosen}
        taken = Taken(groups=groups, stale=tuple(group.number for group in stale))
        self._folder.mkdir(exist_ok=True)
        write_atomically(self._file(step), taken.model_dump_json().encode())

    def read(self, step: int) -> Taken | None:
        """Return a step's groups; None before it was noted."""
        file = self._file(step)
        return Taken.model_validate_json(file.read_bytes()) if file.exists() else None

    def done(self) -> tuple[set[int], set[int]]:
        """Return the numbers of all groups that were taken, and of those that were dropped."""
        files = [Taken.model_validate_json(f.read_bytes()) for f in self._folder.glob("*.json")]
        taken = {number for file in files for number in file.groups}
        return taken, {number for file in files for number in file.stale}

    def _file(self, step: int) -> Path:
        return self._folder / f"{step:06d}.json"
