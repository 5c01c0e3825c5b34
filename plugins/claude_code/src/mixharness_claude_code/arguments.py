r"""How the program rewrites tool arguments before it sends them back. For comparison only.

Measured with release 2.1.328: it reads numbers as JavaScript does, undoes `\uXXXX` written twice,
turns lone surrogates into U+FFFD, turns "5000" into 5000 where a number is wanted, takes
`cd WORKSPACE && ` off a Bash command, halves backslashes before `;`, strips line ends of edits and
adds `replace_all`. The rule maps both sides to a form in which none of that shows. It may equate
more than the program does: a message is compared with the one call whose minted id it carries.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

from mixharness import MatchRule
from mixharness.proxy.chat import ChatMessage, ToolCall

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_NUMBER = re.compile(r"\s*[-+]?\d+(\.\d+)?\s*")
_CD = re.compile(r"(?:cd \S+ && )+")
_LINE_END = re.compile(r"[^\S\r\n]+(?=[\r\n]|$)")


def _apply(message: ChatMessage) -> ChatMessage:
    calls = tuple(replace(call, arguments=_settled(call)) for call in message.tool_calls)
    return replace(message, tool_calls=calls)


ARGUMENTS = MatchRule(name="claude_code_arguments", version=1, apply=_apply)


def _settled(call: ToolCall) -> str:
    try:
        value = json.loads(
            call.arguments, parse_int=_number, parse_float=_number, parse_constant=_no_constant
        )
        value = _walk(value)
    except (ValueError, RecursionError):
        return call.arguments
    if isinstance(value, dict):
        value = _known_tool(call.name, {key: _coerced(item) for key, item in value.items()})
    return json.dumps(value, sort_keys=True)


def _number(text: str) -> float | None:
    value = float(text)
    return value + 0.0 if math.isfinite(value) else None  # + 0.0: there is no negative zero


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _walk(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [_walk(item) for item in value]
    if isinstance(value, dict):
        return {_text(key): _walk(item) for key, item in value.items() if key != "__proto__"}
    return value


def _text(text: str) -> str:
    while (decoded := _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)) != text:
        text = decoded
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _coerced(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value in ("true", "false"):
        return value == "true"
    return _number(value) if _NUMBER.fullmatch(value) else value


def _known_tool(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    for key in ("command", "new_string", "content"):
        if isinstance(arguments.get(key), str):
            rewrite = _command if key == "command" else _lines
            arguments[key] = rewrite(arguments[key])
    return {"replace_all": False, **arguments} if name == "Edit" else arguments


def _command(text: str) -> str:
    bare = _CD.sub("", text, count=1) if _CD.match(text) else text
    return re.sub(r"\\+;", r"\\;", bare)


def _lines(text: str) -> str:
    return _LINE_END.sub("", text)
