"""The live line of a run, and its result as a table in the terminal. Nothing is computed here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


class RunProgress:
    """Shows step, reward per harness, entropy, calls, failures and time left.

    At a terminal the display is redrawn in place; elsewhere each step and stage is one plain line.
    Use as a context manager around the run; the terminal is given back on leaving.
    """

    def __init__(
        self, *, total_steps: int, harnesses: Sequence[str], console: Console | None = None
    ) -> None:
        self._console = console or Console()
        self._total = total_steps
        self._harnesses = tuple(harnesses)
        self._stage = "starting"
        self._metrics: Mapping[str, Any] = {}
        self._done = self._found = self._calls = self._failures = 0
        self._started = self._steps_started = time.monotonic()
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def go_on(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Take the steps of a run that is resumed, in the form of metrics.jsonl."""
        self._done = self._found = len(history)

    def stage(self, name: str) -> None:
        """Say what the run does now, e.g. `cold start` or `eval before`."""
        self._stage = name
        if self._done == self._found:
            self._steps_started = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"{_clock(self._elapsed_s)}  {name}", highlight=False)

    def add_calls(self, count: int = 1) -> None:
        """Count model calls as they are answered."""
        self._calls += count

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of a finished step, in the form of metrics.jsonl."""
        self._done += 1
        self._metrics = metrics
        self._failures += sum(int(metrics.get(f"failures/{h}", 0)) for h in self._harnesses)
        if not self._console.is_terminal:
            self._console.print(self._line(), highlight=False, soft_wrap=True)

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def _left_s(self) -> float | None:
        """Seconds left, from the mean time of the steps so far."""
        taken = self._done - self._found
        if not taken:
            return None
        spent = time.monotonic() - self._steps_started
        return spent / taken * max(0, self._total - self._done)

    def _figures(self) -> list[tuple[str, str]]:
        left = self._left_s
        rewards = [(f"reward {h}", _number(self._metrics, f"reward/{h}")) for h in self._harnesses]
        return [
            *rewards,
            ("entropy", _number(self._metrics, "entropy")),
            ("calls", f"{self._calls:,}"),
            ("failures", f"{self._failures:,}"),
            ("left", "–" if left is None else _clock(left)),
        ]

    def _line(self) -> str:
        figures = "  ".join(f"{name} {value}" for name, value in self._figures())
        return f"{_clock(self._elapsed_s)}  step {self._done}/{self._total}  {figures}"

    def _render(self) -> Group:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(self._stage, style="bold"),
            ProgressBar(total=max(1, self._total), completed=self._done, width=32),
            f"step {self._done}/{self._total}",
            Text(_clock(self._elapsed_s), style="dim"),
        )
        table = Table.grid(padding=(0, 3))
        table.add_row(*(Text(name, style="dim") for name, _ in self._figures()))
        table.add_row(*(Text(value, style="bold") for _, value in self._figures()))
        return Group(head, table)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return the result per harness: held-out score before and after, difference, interval.

    Args:
        summary: the content of summary.json.
    """
    table = Table(title="Held-out score per harness")
    for title in ("harness", "before", "after", "difference", "95 % interval", "tasks", "failures"):
        table.add_column(title, justify="left" if title == "harness" else "right")
    for label, row in sorted(summary.get("harnesses", {}).items()):
        low, high = _number(row, "diff_low", "+.3f"), _number(row, "diff_high", "+.3f")
        table.add_row(
            label,
            _number(row, "before"),
            _number(row, "after"),
            _number(row, "diff", "+.3f"),
            f"{low} to {high}",
            _number(row, "held_out_tasks", ",d"),
            _number(row, "failures", ",d"),
        )
    return table


def _number(values: Mapping[str, Any], key: str, form: str = ".3f") -> str:
    value = values.get(key)
    return "–" if value is None else format(value, form)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:d}:{rest:02d}"
