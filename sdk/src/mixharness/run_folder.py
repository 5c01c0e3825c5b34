"""Whose run a folder holds: the run file noted in it, and what may differ when the run goes on.

What else lies in the folder is store.py's and the trainer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from mixharness.config import RunConfig
from mixharness.errors import ConfigError
from mixharness.rollout.store import write_atomically

RUN_FILE = "run.json"
FREE_TO_CHANGE = ("pruning", "rollout", "tracker")
"""Tables and keys that a run may go on with changed: what is on disk does not depend on them."""
_NOTHING = object()


def note_run_file(config: RunConfig, run_dir: Path, free: Sequence[str] = FREE_TO_CHANGE) -> None:
    """Note the run file in the folder, or refuse a folder that holds another run (rule 10).

    Args:
        config: the checked run file.
        run_dir: made when it is not there.
        free: tables and dotted keys that may have changed.

    Raises:
        ConfigError: with every key that differs in what matters; nothing was written.
    """
    file = run_dir / RUN_FILE
    now = orjson.loads(orjson.dumps(config.raw, default=str))
    before = orjson.loads(file.read_bytes()) if file.exists() else now
    problems = [
        (key, f"{_said(new)} here, {_said(old)} in the run in {run_dir}")
        for key, old, new in _differences(before, now, "")
        if not any(f"{key}.".startswith(f"{each}.") for each in free)
    ]
    if problems:
        advice = f"{run_dir} holds another run; undo these changes, or choose another folder"
        raise ConfigError(str(config.path), [*problems, ("--run-dir", advice)])
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(file, orjson.dumps(now, option=orjson.OPT_INDENT_2))


def _differences(old: Any, new: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each differing key, dotted as `--set` takes it, with both values."""
    before, now = _entries(old), _entries(new)
    if before is None or now is None:
        if old != new:
            yield where, old, new
        return
    for key in sorted({*before, *now}):
        inner = f"{where}.{key}" if where else key
        yield from _differences(before.get(key, _NOTHING), now.get(key, _NOTHING), inner)


def _entries(value: Any) -> Mapping[str, Any] | None:
    """Return what a table or list holds, by key or number; None of a plain value."""
    if isinstance(value, list):
        return {str(number): entry for number, entry in enumerate(value)}
    return {} if value is _NOTHING else value if isinstance(value, Mapping) else None


def _said(value: Any) -> str:
    return "not set" if value is _NOTHING else orjson.dumps(value).decode()
