"""Request bodies as JSON: of a conversation that only grew, only what is new is parsed.

What the fields mean is the dialects'.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import orjson

from mixharness.proxy.dialects import BadRequest

_CONVERSATIONS = ("messages", "input")
"""The fields in which dialects have one."""
_KEPT = 8
"""Conversations that may take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A body whose conversation is written just as `orjson` writes it."""

    head: bytes
    """The body up to the end of the conversation's last item."""
    key: str
    before: dict[str, Any]
    """The fields in front of it."""
    items: list[Any]


class BodyReader:
    """Reads the bodies of one rollout.

    A body that begins with the very bytes of an earlier one, up to the end of its last message,
    gets that one's messages, the same objects. The rest is parsed and, written again, compared
    with the bytes that came: whatever is unusual is read from the beginning.
    """

    def __init__(self) -> None:
        self._latest: list[_Known] = []

    def read(self, raw: bytes) -> dict[str, Any]:
        """Return a body as JSON; must not be changed later.

        Raises:
            BadRequest: it is no JSON object.
        """
        known = next((known for known in self._latest if raw.startswith(known.head)), None)
        grown = _grown(raw, known) if known else None
        if grown is None:
            body = read_json(raw)
            self._note(_first(raw, body), None)
            return body
        body, now = grown
        self._note(now, known)
        return body

    def _note(self, now: _Known | None, before: _Known | None) -> None:
        if now is not None:
            others = [known for known in self._latest if known is not before]
            self._latest = [now, *others][:_KEPT]


def read_json(raw: bytes) -> dict[str, Any]:
    """Return a body as JSON.

    Raises:
        BadRequest: it is no JSON object.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _lenient(raw)
    if not isinstance(body, dict):
        raise BadRequest("the request body must be a JSON object")
    return body


def _first(raw: bytes, body: dict[str, Any]) -> _Known | None:
    """Find the conversation in a body; None when it is written in another way."""
    key = next((name for name in _CONVERSATIONS if body.get(name)), "")
    start = raw.find(b'"%s":[' % key.encode()) + len(key) + 3
    written = _written(body.get(key))
    if not written or not raw.startswith(written, start):
        return None
    return _Known(
        head=raw[: start + len(written) - 1],
        key=key,
        before=dict(takewhile(lambda field: field[0] != key, body.items())),
        items=body[key],
    )


def _grown(raw: bytes, known: _Known) -> tuple[dict[str, Any], _Known] | None:
    """Read what comes after a known head; None when that is not simply more of the same."""
    rest = raw[len(known.head) :]
    more = rest.startswith(b",")
    if b'"%s":' % known.key.encode() in rest:  # a field that comes twice counts as it last came
        return None
    try:
        fields = orjson.loads(b'{"%s":[' % known.key.encode() + rest[more:])
    except orjson.JSONDecodeError:
        return None
    new = fields.pop(known.key)
    written = _written(new) if more else b"[]"
    if not written or not rest.startswith(written[1:], more):
        return None
    head = raw[: len(known.head) + more + len(written) - 2]
    now = _Known(head=head, key=known.key, before=known.before, items=known.items + new)
    return {**known.before, known.key: now.items, **fields}, now


def _written(items: Any) -> bytes:
    """Return a list of items as programs write it; nothing when there is none."""
    try:
        return orjson.dumps(items) if items and isinstance(items, list) else b""
    except orjson.JSONEncodeError:
        return b""


def _lenient(raw: bytes) -> Any:
    """Read what the strict parser refuses but programs send: halves of surrogate pairs."""
    try:
        text = json.dumps(json.loads(raw), ensure_ascii=False)
        return orjson.loads(text.encode(errors="replace"))
    except (ValueError, RecursionError) as exc:
        raise BadRequest(f"the request body is not valid JSON: {exc}") from exc
