"""The task-source interface: an iterator of tasks. Sources hold no state of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from mixharness.component import Component, ConfigT
from mixharness.types import Task


class TaskSource(Component[ConfigT], ABC):
    """Yields tasks; two passes yield the same tasks, ids are unique. Finite ones have a length."""

    @abstractmethod
    def tasks(self) -> Iterator[Task]:
        """Yield the tasks in a fixed order."""
