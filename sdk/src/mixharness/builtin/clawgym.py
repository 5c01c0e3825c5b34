"""The `clawgym` task source: task folders as ClawGym has them. It grades nothing.

TASK/data_entry.json    task_id, user_query, input_mount_dir, metadata
TASK/input_files/       copied verbatim to input_mount_dir
TASK/reward/reward.sh   run after the agent, helpers beside it (reward_script.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mixharness.builtin.reward_script import FOLDER, SCRIPT
from mixharness.component import ComponentConfig
from mixharness.task_source import TaskSource
from mixharness.types import Task

ENTRY = "data_entry.json"
WORKSPACE = "/root/.openclaw/workspace"
"""Where a task without `input_mount_dir` has its workspace; its script relies on that."""


class ClawGymConfig(ComponentConfig):
    """Keys of `[[task_source]] name = "clawgym"`."""

    path: Path
    """Folder of task folders, or one task folder. Relative to the working folder."""


class Entry(BaseModel):
    """`data_entry.json`."""

    model_config = ConfigDict(extra="forbid")

    task_id: str = Field(min_length=1)
    user_query: str = Field(min_length=1)
    input_mount_dir: str = WORKSPACE
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("input_mount_dir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        path = PurePosixPath(value)
        if not path.is_absolute() or len(path.parts) == 1 or ".." in path.parts:
            raise ValueError(f"{value!r} must be an absolute path below / without '..'")
        return str(path)


class ClawGymTasks(TaskSource[ClawGymConfig]):
    """Tasks from a folder, in the order of their folders' names, read once."""

    name = "clawgym"
    config_type = ClawGymConfig

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks.

        Raises:
            ExceptionGroup: of a ValueError for each thing wrong, with the file and what is right.
        """
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @cached_property
    def _tasks(self) -> list[Task]:
        problems: list[ValueError] = []
        tasks: dict[str, Task] = {}
        for folder in _task_folders(self.config.path):
            task = _read_task(folder, problems)
            if task is None:
                continue
            if task.id in tasks:
                other = Path(tasks[task.id].answer[FOLDER]).with_name(ENTRY)
                text = f"task_id {task.id!r} is that of {other} too; ids must be unique"
                problems.append(ValueError(f"{folder / ENTRY}: {text}"))
            tasks.setdefault(task.id, task)
        if problems:
            raise ExceptionGroup(f"{self.config.path} holds broken tasks", problems)
        return list(tasks.values())


def _task_folders(path: Path) -> list[Path]:
    if (path / ENTRY).exists():
        return [path]
    try:
        found = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError as exc:
        raise ValueError(f"{path}: must be a folder of task folders: {exc.strerror}") from exc
    if not found:
        raise ValueError(f"{path}: holds no task folder, which is one with a {ENTRY}")
    return found


def _read_task(folder: Path, problems: list[ValueError]) -> Task | None:
    """Return a folder's task, or note what is wrong with it."""
    reward, files = folder / FOLDER, folder / "input_files"
    if not (reward / SCRIPT).is_file():
        problems.append(ValueError(f"{reward / SCRIPT}: missing; it prints the score"))
    try:
        entry = Entry.model_validate_json((folder / ENTRY).read_bytes())
    except FileNotFoundError:
        problems.append(ValueError(f"{folder / ENTRY}: missing; every task folder has one"))
    except OSError as exc:
        problems.append(ValueError(f"{folder / ENTRY}: cannot be read: {exc.strerror}"))
    except ValidationError as exc:
        problems += [_problem(folder / ENTRY, error) for error in exc.errors(include_url=False)]
    else:
        return Task(
            id=entry.task_id,
            prompt=entry.user_query,
            verifier="reward_script",
            folder=files if files.is_dir() else None,
            workspace=entry.input_mount_dir,
            answer={FOLDER: str(reward)},
            metadata=entry.metadata,
        )
    return None


def _problem(file: Path, error: Any) -> ValueError:
    known = ", ".join(Entry.model_fields)
    if error["type"] == "extra_forbidden":
        message = f"unknown key; the keys are {known}"
    elif error["type"] == "missing":
        message = f"required; the keys are {known}"
    else:
        message = str(error["msg"]).removeprefix("Value error, ")
    where = ".".join(map(str, error["loc"]))
    return ValueError(f"{file}: {where}: {message}" if where else f"{file}: {message}")
