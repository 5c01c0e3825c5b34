"""structlog set-up: events to stderr for people, or as JSON lines into a run folder.

Event names are stable snake_case words; everything variable is a field. Metrics go to trackers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import structlog

EVENTS_FILE = "events.jsonl"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _Stderr:
    """Writes to whatever `sys.stderr` is now, so that capture and redirection work."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def setup_logs(level: str = "warning") -> None:
    """Send events of at least `level` to stderr."""
    renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    _configure(level, renderer, _Stderr())  # type: ignore[arg-type]


@contextmanager
def logs_to(run_dir: Path, level: str = "info") -> Iterator[Path]:
    """Send events to `events.jsonl` in the run folder; on leaving, to where they went before.

    A resumed run appends. Yields the file's path.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    before = structlog.get_config()
    path = run_dir / EVENTS_FILE
    with path.open("a", encoding="utf-8", buffering=1) as file:
        _configure(level, structlog.processors.JSONRenderer(default=str), file)
        try:
            yield path
        finally:
            structlog.configure(**before)


def _configure(level: str, renderer: structlog.typing.Processor, out: TextIO) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
