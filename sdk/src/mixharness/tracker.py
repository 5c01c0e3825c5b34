"""The tracker interface: where metrics go. Numbers arrive finished; nothing is computed here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixharness.component import Component, ConfigT
from mixharness.types import Rollout


class Tracker(Component[ConfigT], ABC):
    """Receives metrics. A raise is logged and never stops a run."""

    @abstractmethod
    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin; called once before any log."""

    @abstractmethod
    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Take the metrics of one step.

        A resumed run takes the steps since its last checkpoint again, with the same figures, and
        gives them again: a tracker shows each step once.
        """

    def log_rollout(self, rollout: Rollout, step: int) -> None:
        """Take one finished rollout; the default ignores it. A resumed run may give one again."""

    @abstractmethod
    def finish(self) -> None:
        """End; may be called twice."""
