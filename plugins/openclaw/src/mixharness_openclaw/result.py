"""Reads the one JSON value that the program prints at its end. Running it is harness.py's."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from mixharness.program import ProgramOutput

log = structlog.get_logger()

_OVERFLOWS = ("context_overflow", "compaction_failure")


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Error(_Lenient):
    kind: str = ""
    message: str = ""


class _Payload(_Lenient):
    text: str = ""
    isError: bool = False


class _Meta(_Lenient):
    aborted: bool = False
    stopReason: str = ""
    error: _Error | None = None


class _Result(_Lenient):
    """What is printed after a run, or, with `error`, instead of one; a Gateway wraps it."""

    payloads: tuple[_Payload, ...] = ()
    meta: _Meta = _Meta()
    error: _Error | None = None
    acceptedSessionSpawns: tuple[Any, ...] = ()
    result: _Result | None = None

    @property
    def failure(self) -> _Error | None:
        """Return what went wrong, or None."""
        told = self.error or self.meta.error
        wrong = [payload.text for payload in self.payloads if payload.isError]
        failed = self.meta.aborted or self.meta.stopReason in ("error", "timeout")
        if told is None and (wrong or failed):
            return _Error(message=wrong[0] if wrong else f"stopped by {self.meta.stopReason}")
        return told


class ResultReader(ProgramOutput):
    """Keeps the last value, which is printed over many lines."""

    def __init__(self) -> None:
        super().__init__()
        self.spawned = False
        """Whether a turn was begun that may still be going on."""
        self._lines: list[bytes] = []

    def read(self, line: bytes) -> None:
        """Take a line; the closing brace of the whole value ends it."""
        if line == b"{":
            self._lines.clear()
        self._lines.append(line)
        if line == b"}":
            self._settle(b"\n".join(self._lines))

    def _settle(self, text: bytes) -> None:
        try:
            value: Any = orjson.loads(text)
            printed = _Result.model_validate(value)
        except (orjson.JSONDecodeError, ValidationError) as error:
            log.warning("openclaw_result_unread", error=str(error))
            return
        result = printed.result or printed
        self.spawned = bool(result.acceptedSessionSpawns)
        failure = result.failure
        if failure is None:
            self.reason = "completed"
            self.message = "\n".join(payload.text for payload in result.payloads)
        else:
            self.reason = "context_overflow" if failure.kind in _OVERFLOWS else "error"
            self.message = failure.message
