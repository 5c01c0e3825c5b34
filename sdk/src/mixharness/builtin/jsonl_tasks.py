"""The `jsonl` task source: one JSON object per line. It generates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from mixharness.component import ComponentConfig
from mixharness.task_source import TaskSource
from mixharness.types import Service, Task


class JsonlTasksConfig(ComponentConfig):
    """Keys of `[[task_source]] name = "jsonl"`."""

    path: Path
    """File with one task per line; keys as in `Task`. Relative to the working folder."""
    verifier: str = "exact_match"
    """For lines that name none."""


class ServiceLine(BaseModel):
    """One service of a line; keys as in `Service`."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    command: tuple[str, ...] = Field(min_length=1)
    health: tuple[str, ...] = Field(min_length=1)
    mcp_url: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    start_s: float = Field(30.0, gt=0)


class TaskLine(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(extra="forbid")

    id: str
    prompt: str
    verifier: str | None = None
    files: dict[str, str] = Field(default_factory=dict)
    folder: Path | None = None
    """Relative to the file that the line is in."""
    workspace: str = Field("", pattern=r"^(/.+)?$")
    image: str = ""
    services: tuple[ServiceLine, ...] = ()
    limits: dict[str, float] = Field(default_factory=dict)
    answer: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class JsonlTasks(TaskSource[JsonlTasksConfig]):
    """Tasks from a file, read once."""

    name = "jsonl"
    config_type = JsonlTasksConfig

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks in the file's order.

        Raises:
            ValueError: a line is no task; says file, line and what is wrong.
        """
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @cached_property
    def _tasks(self) -> list[Task]:
        lines = self.config.path.read_text(encoding="utf-8").splitlines()
        return [self._task(i, line) for i, line in enumerate(lines, start=1) if line.strip()]

    def _task(self, number: int, line: str) -> Task:
        try:
            read = TaskLine.model_validate_json(line)
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            raise self._wrong(number, ".".join(map(str, first["loc"])), _message(first)) from exc
        folder = self.config.path.parent / read.folder if read.folder else None
        if folder is not None and not folder.is_dir():
            raise self._wrong(number, "folder", f"{folder} is no folder")
        own = {
            "verifier": read.verifier or self.config.verifier,
            "folder": folder,
            "services": tuple(Service(**each.model_dump()) for each in read.services),
        }
        return Task(**{**read.model_dump(), **own})

    def _wrong(self, number: int, where: str, message: str) -> ValueError:
        return ValueError(f"{self.config.path}:{number}: {where or 'line'}: {message}")


def _message(error: ErrorDetails) -> str:
    if error["type"] == "string_pattern_mismatch":
        return f"must be an absolute path, got {error['input']!r}"
    return error["msg"]
