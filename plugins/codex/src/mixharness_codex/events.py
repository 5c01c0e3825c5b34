"""Reads the program's JSON lines. Tolerant: what it does not know it passes over."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

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


class EventStream:
    """Takes stdout in chunks and keeps how the last turn ended.

    Attributes:
        reason: in `HarnessExit`'s words; empty as long as no turn has ended.
        message: the last message of the agent, or what went wrong.
        tail: the end of what was printed, for people.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.message = ""
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
