"""Reads the program's `stream-json` output. Tolerant: what it does not know it passes over."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from mixharness.program import ProgramOutput

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


class EventStream(ProgramOutput):
    """Keeps the last result; with background agents there are several."""

    def read(self, line: bytes) -> None:
        """Read one event."""
        if b'"result"' not in line:
            return
        try:
            event = orjson.loads(line)
            if isinstance(event, dict) and event.get("type") == "result":
                result = ResultEvent.model_validate(event)
                self.reason, self.message = result.reason, result.message
        except (orjson.JSONDecodeError, ValidationError) as error:
            log.warning("claude_code_event_unread", error=str(error))
