"""The `jsonl` task source: one JSON object per line. It generates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mixharness.component import ComponentConfig
from mixharness.task_source import TaskSource
from mixharness.types import Task


class JsonlTasksConfig(ComponentConfig):
    """Keys of `[[task_source]] name = "jsonl"`."""

    path: Path
    """File with one task per line; keys as in `Task`. Relative to the working folder."""
    verifier: str = "exact_match"
    """For lines that name none."""


class TaskLine(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(extra="forbid")

    id: str
    prompt: str
    verifier: str | None = None
    files: dict[str, str] = Field(default_factory=dict)
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
            fields = TaskLine.model_validate_json(line).model_dump()
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise ValueError(f"{self.config.path}:{number}: {where}: {first['msg']}") from exc
        fields["verifier"] = fields["verifier"] or self.config.verifier
        return Task(**fields)
