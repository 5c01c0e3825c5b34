"""A rollout's model calls on disk: append-only events, and raw bodies (TOKENS_AND_TREES 1.8).

What the events mean for training is decided in tree/.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from mixharness.proxy.bodies import Body, BodyWriter
from mixharness.proxy.bodies import read_bodies as _read_body_file
from mixharness.types import Delivery, ModelCall

CALLS = "calls.jsonl"
BODIES = "bodies.zst"
_CALL = TypeAdapter(ModelCall)
_sync = os.fsync if sys.platform == "darwin" else os.fdatasync


class CallLog:
    """Appends to `calls.jsonl` and `bodies.zst` in one rollout's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Lines are written from the event loop only, so their order needs no lock.
        self._calls = (folder / CALLS).open("ab", buffering=0)
        self._bodies = BodyWriter(folder / BODIES)

    async def sampled(self, call: ModelCall, request: bytes, response: bytes) -> None:
        """Write a call and its bodies; when this returns they are on the disk."""
        self._event("sampled", call=call)
        await asyncio.to_thread(self._settle, call, request, response)

    def cancelled(self, call: ModelCall) -> None:
        """Write a call whose client went away while it was sampled."""
        self._event("sampled", call=call)

    def delivery(self, call_id: str, delivery: Delivery) -> None:
        """Write what became of an answer, after its last byte was sent or could not be."""
        self._event("delivery", id=call_id, delivery=delivery)

    def duplicate(self, call_id: str) -> None:
        """Write that a call's request came again and was given the same answer."""
        self._event("duplicate", id=call_id)

    def identified(self, call: ModelCall) -> None:
        """Write what a call turned out to be for, when later calls show it."""
        self._event("identity", id=call.id, role=call.role, agent=call.agent)

    def close(self) -> None:
        """Close both files."""
        self._calls.close()
        self._bodies.close()

    def _event(self, event: str, **fields: Any) -> None:
        self._calls.write(_line(event, **fields))

    def _settle(self, call: ModelCall, request: bytes, response: bytes) -> None:
        for kind, data in (("request", request), ("response", response)):
            self._bodies.append(Body(call=call.id, kind=kind, agent=call.agent, data=data))
        _sync(self._bodies.fileno())
        _sync(self._calls.fileno())


def note_superseded(folder: Path, reasons: Mapping[str, str]) -> None:
    """Write, at assembly, which calls are on no live branch, and why; the log is closed."""
    with (folder / CALLS).open("ab") as file:
        file.writelines(_line("superseded", id=id_, reason=why) for id_, why in reasons.items())


def _line(event: str, **fields: Any) -> bytes:
    return orjson.dumps({"event": event, **fields}) + b"\n"


def read_calls(folder: Path) -> tuple[ModelCall, ...]:
    """Return a rollout's calls in order of arrival, later events worked in.

    A line torn by a crash is dropped; a delivery that was not written reads as unknown.

    Raises:
        ValueError: a line in the middle is no event.
    """
    calls: dict[str, dict[str, Any]] = {}
    duplicates: dict[str, int] = {}
    for event in _events(folder / CALLS):
        if event["event"] == "sampled":
            call = event["call"]
            if call["delivery"] == Delivery.PENDING:
                call["delivery"] = Delivery.UNKNOWN
            calls[call["id"]] = call
        elif event["event"] == "delivery":
            calls[event["id"]]["delivery"] = event["delivery"]
        elif event["event"] == "identity":
            calls[event["id"]] |= {"role": event["role"], "agent": event["agent"]}
        elif event["event"] == "duplicate":
            duplicates[event["id"]] = duplicates.get(event["id"], 0) + 1
    merged = (call | {"duplicates": duplicates.get(id_, 0)} for id_, call in calls.items())
    records = [_CALL.validate_json(orjson.dumps(call)) for call in merged]
    return tuple(sorted(records, key=lambda call: call.index))


def read_bodies(folder: Path) -> tuple[Body, ...]:
    """Return a rollout's raw bodies in the order they were written.

    Raises:
        ValueError: a body is damaged.
    """
    return tuple(_read_body_file(folder / BODIES))


def _events(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is torn
        try:
            events.append(orjson.loads(line))
        except orjson.JSONDecodeError as exc:
            raise ValueError(f"{path}:{number}: no event: {exc}") from exc
    return events
