"""The `jsonl` tracker: `metrics.jsonl` in the run folder, one line per step. Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from mixharness.component import ComponentConfig
from mixharness.tracker import Tracker


class JsonlTrackerConfig(ComponentConfig):
    """Keys of `[[tracker]] name = "jsonl"`."""

    file: str = "metrics.jsonl"
    """Name inside the run folder."""


class JsonlTracker(Tracker[JsonlTrackerConfig]):
    """Appends to a file, flushed after every line so that a killed run keeps its history.

    A resumed run takes steps again; their lines are there and stay, so that each is there once.
    """

    name = "jsonl"
    config_type = JsonlTrackerConfig

    def __init__(self, config: JsonlTrackerConfig) -> None:
        super().__init__(config)
        self._file: IO[bytes] | None = None
        self._there: frozenset[int] = frozenset()
        """Steps that were logged before `start`."""

    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Open the file; a resumed run appends."""
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / self.config.file
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._there = frozenset(orjson.loads(line)["step"] for line in whole)
        self._file = path.open("ab")
        self._file.truncate(sum(map(len, whole)))  # a kill may leave half a line

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write one line. Numbers that are not finite become strings, which JSON can hold.

        Raises:
            RuntimeError: before `start`.
        """
        if self._file is None:
            raise RuntimeError("log before start")
        if step in self._there:
            return
        line = {"step": step, **{key: _plain(value) for key, value in metrics.items()}}
        self._file.write(orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS) + b"\n")
        self._file.flush()

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
