"""Reads the program's JSON lines. Tolerant: what it does not know it passes over."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from mixharness.program import ProgramOutput

log = structlog.get_logger()

_OVERFLOW = "ran out of room in the model's context window"


class _Item(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str = ""
    text: str = ""


class _Error(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    message: str = ""


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str
    item: _Item = _Item()
    error: _Error = _Error()


class EventStream(ProgramOutput):
    """Keeps how the last turn ended."""

    def read(self, line: bytes) -> None:
        """Read one event."""
        try:
            value: Any = orjson.loads(line)
            event = _Event.model_validate(value)
        except (orjson.JSONDecodeError, ValidationError) as error:
            if line.strip():
                log.warning("codex_event_unread", error=str(error))
            return
        if event.type == "item.completed" and event.item.type == "agent_message":
            self.message = event.item.text
        elif event.type == "turn.completed":
            self.reason = "completed"
        elif event.type == "turn.failed":
            overflow = _OVERFLOW in event.error.message
            self.reason = "context_overflow" if overflow else "error"
            self.message = event.error.message
