"""A run's rollouts on disk: one folder each. The calls in it are written by the proxy's log."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from mixharness.proxy.log import CALLS, read_calls
from mixharness.types import Rollout

ROLLOUT_FILE = "rollout.json"

_rollouts: TypeAdapter[Rollout] = TypeAdapter(Rollout)


class RunStore:
    """The `rollouts/` and `stages/` folders of a run.

    `rollouts/<id>/` holds the last attempt; those before it are kept as `rollouts/<id>~<n>/`.
    `stages/<stage>.json` lists the rollouts of a stage that was collected to its end.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / "rollouts"
        self._stages = run_dir / "stages"

    def path(self, rollout_id: str) -> Path:
        """Return the folder of a rollout's last attempt."""
        return self.folder / rollout_id

    def begin(self, rollout_id: str) -> Path:
        """Return a new empty folder for an attempt; an earlier one is set aside."""
        folder = self.path(rollout_id)
        if folder.exists():
            earlier = sum(1 for _ in self.folder.glob(f"{rollout_id}~*"))
            folder.rename(folder.with_name(f"{rollout_id}~{earlier + 1}"))
        folder.mkdir(parents=True)
        return folder

    def save(self, rollout: Rollout) -> None:
        """Write a finished rollout so that a crash leaves all of it or nothing (rule 10)."""
        data = _rollouts.dump_json(rollout, exclude={"calls"}, indent=1, fallback=str)
        write_atomically(self.path(rollout.id) / ROLLOUT_FILE, data)

    def load(self, rollout_id: str) -> Rollout:
        """Return a finished rollout with its calls.

        Raises:
            FileNotFoundError: it is not finished.
        """
        folder = self.path(rollout_id)
        data: dict[str, Any] = orjson.loads((folder / ROLLOUT_FILE).read_bytes())
        rollout = _rollouts.validate_python(data | {"calls": ()})
        # A rollout whose sandbox did not start never had a proxy session.
        calls = read_calls(folder) if (folder / CALLS).exists() else ()
        return replace(rollout, calls=calls)

    def note_collected(self, stage: str, rollouts: Sequence[Rollout]) -> None:
        """Note that a stage is collected, with its rollouts in the order that they are used in."""
        self._stages.mkdir(exist_ok=True)
        data = orjson.dumps([rollout.id for rollout in rollouts])
        write_atomically(self._stages / f"{stage}.json", data)

    def collected(self, stage: str) -> list[str] | None:
        """Return the ids of a collected stage, in order; None before it is collected."""
        file = self._stages / f"{stage}.json"
        ids: list[str] | None = orjson.loads(file.read_bytes()) if file.exists() else None
        return ids

    def finished(self) -> list[str]:
        """Return the ids of all finished rollouts, sorted."""
        return sorted(name for name in self._folders() if "~" not in name)

    def set_aside(self) -> list[str]:
        """Return the names, for `load`, of finished attempts that were repeated, sorted."""
        return sorted(name for name in self._folders() if "~" in name)

    def _folders(self) -> Iterator[str]:
        return (file.parent.name for file in self.folder.glob(f"*/{ROLLOUT_FILE}"))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file beside its place, flush it to the disk and rename it."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def copy_of_workspace(source: Path, target: Path) -> None:
    """Copy a snapshot, for a grading that must not see what an earlier one did to it."""
    shutil.copytree(source, target)
