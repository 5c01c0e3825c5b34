"""The exact characters of a sampled tool call's arguments. No token and no dialect lives here."""

from __future__ import annotations

import json
import re

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


def sampled_arguments(call: str) -> str:
    r"""Return the value of the key `arguments` in a JSON object, character for character.

    Args:
        call: a valid JSON object such as `{"name": "Bash", "arguments": {"command":  "ls"}}`.

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
        if key == "arguments":
            found = call[start:end]
        at = _skip(call, end)
        if call[at] == ",":
            at = _skip(call, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at
