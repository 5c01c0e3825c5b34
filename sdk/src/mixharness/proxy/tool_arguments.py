"""The exact characters of a sampled tool call's arguments. No token and no dialect lives here."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


def read_json(text: str) -> Any:
    """Return JSON that can be sent on: valid to strict readers, and not nested beyond writing.

    Raises:
        ValueError: it is not.
    """
    value = orjson.loads(text)  # Python's own parser lets NaN pass
    try:
        orjson.dumps([[[[[[[[value]]]]]]]])  # as deep as a dialect wraps it
    except orjson.JSONEncodeError as exc:
        raise ValueError(str(exc)) from exc
    return value


def sampled_arguments(call: str, name: str = "arguments") -> str:
    r"""Return the value of a key in a JSON object, character for character.

    Args:
        call: a valid JSON object such as `{"name": "Bash", "arguments": {"command":  "ls"}}`.
        name: the key.

    Returns:
        The value's own text; `{}` when there is no such key. Of a repeated key the last counts, as
        everywhere in JSON.
    """
    found = "{}"
    at = _skip(call, _skip(call, 0) + 1)
    while call[at] != "}":
        key, at = _DECODER.raw_decode(call, at)
        start = _skip(call, _skip(call, at) + 1)  # past the colon
        _, end = _DECODER.raw_decode(call, start)
        if key == name:
            found = call[start:end]
        at = _skip(call, end)
        if call[at] == ",":
            at = _skip(call, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at
