"""Reads the program's `stream-json` output. Tolerant: what it does not know it passes over."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

log = structlog.get_logger()

_REASONS = {
    "max_turns": "max_turns",
    "prompt_too_long": "context_overflow",
    "blocking_limit": "context_overflow",
    "model_context_window_exceeded": "context_overflow",
}


class ResultEvent(BaseModel):
    """The event that ends a run. `subtype` says "success" for API errors too: do not trust it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    is_error: bool = False
    result: str | None = None
    terminal_reason: str | None = None
    errors: tuple[Any, ...] = ()

    @property
    def reason(self) -> str:
        """Return the reason in `HarnessExit`'s words."""
        known = _REASONS.get(self.terminal_reason or "")
        return known or ("error" if self.is_error else "completed")

    @property
    def message(self) -> str:
        """Return the final answer, or what went wrong when there is none."""
        return self.result or "; ".join(map(str, self.errors))


class EventStream:
    """Takes stdout in chunks and keeps the last result event.

    Attributes:
        result: the last result so far; with background agents there are several.
        tail: the end of what was printed, for people.
    """

    def __init__(self) -> None:
        self.result: ResultEvent | None = None
        self.tail = b""
        self._line = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take a chunk; a line may be spread over many."""
        self.tail = (self.tail + chunk)[-2000:]
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._read(bytes(self._line) + line)
            self._line.clear()
        self._line += rest

    def _read(self, line: bytes) -> None:
        if b'"result"' not in line:
            return
        try:
            event = orjson.loads(line)
            if isinstance(event, dict) and event.get("type") == "result":
                self.result = ResultEvent.model_validate(event)
        except (orjson.JSONDecodeError, ValidationError) as error:
            log.warning("claude_code_event_unread", error=str(error))
