"""Tool calls as JSON objects in a turn's text: Hermes, and what a template's own calls look like.

Calls that are no such objects (XML, channels) are read by the parsers of `renderers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mixharness.proxy.chat import Tool
from mixharness.proxy.tool_arguments import read_json, sampled_arguments

_DECODER = json.JSONDecoder()
KEYS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Where the objects `{"name": …, KEY: {…}}` stand in a turn."""

    opening: str
    """Text before a call, or before a list of calls; empty when the whole turn is one call."""
    closing: str = ""
    key: str = "arguments"

    def read(
        self, text: str, _tools: Sequence[Tool] = ()
    ) -> tuple[str, list[tuple[str, str]], list[str]]:
        """Split a turn's text; JSON tells the types of arguments, so tools are not asked.

        Returns:
            What is not a call, stripped; (name, exact arguments) of each call; the text of each
            malformed call, markers included.
        """
        if not self.opening:
            return self._read_bare(text)
        calls: list[tuple[str, str]] = []
        malformed: list[str] = []
        rest: list[str] = []
        at = 0
        while (start := text.find(self.opening, at)) >= 0:
            rest.append(text[at:start].strip())
            found, at = self._block(text, start)
            if found is None:
                malformed.append(text[start:at].strip())
            else:
                calls += found
        rest.append(text[at:].strip())
        return "\n".join(part for part in rest if part), calls, malformed

    def _read_bare(self, text: str) -> tuple[str, list[tuple[str, str]], list[str]]:
        objects, end = json_objects(text, 0)
        found = self._runnable(objects) if end == len(text) else None
        return (text.strip(), [], []) if found is None else ("", found, [])

    def _block(self, text: str, start: int) -> tuple[list[tuple[str, str]] | None, int]:
        """Return the calls after an opening, or None when one is malformed, and where they end."""
        objects, end = json_objects(text, start + len(self.opening))
        if not text.startswith(self.closing, end):
            stop = text.find(self.closing, end)
            return None, stop + len(self.closing) if stop >= 0 else len(text)
        if not objects and not self.closing:
            end = len(text)
        return self._runnable(objects), end + len(self.closing)

    def _runnable(self, objects: Sequence[str]) -> list[tuple[str, str]] | None:
        calls = [runnable_call(text, self.key) for text in objects]
        found = [call for call in calls if call]
        return found if found and len(found) == len(calls) else None


HERMES = JsonCalls("<tool_call>", "</tool_call>")
"""The form that most open models were taught."""


def json_objects(text: str, at: int) -> tuple[list[str], int]:
    """Return the JSON objects from `at` on, each as written, and where they end.

    One object, several ones apart by commas, semicolons or blanks, or a list of objects.
    """
    found: list[str] = []
    at = _skip(text, at)
    while text.startswith("{", at):
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            break
        found.append(text[at:end])
        at = _skip(text, end)
    return found, at


def runnable_call(text: str, key: str = "arguments") -> tuple[str, str] | None:
    """Return name and exact arguments of one call object, or None for what no harness could run."""
    try:
        call = read_json(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    if not isinstance(call.get(key, {}), dict):
        return None
    return call["name"], sampled_arguments(text, key)


def learn(rendered: str, name: str) -> JsonCalls | None:
    """Find out how a template writes calls, from the rendering of one.

    Args:
        rendered: a turn with nothing but one call, without its end-of-turn token.
        name: the called tool's, which occurs nowhere else in the turn.

    Returns:
        None when calls are not JSON objects that hold both name and arguments.
    """
    at = rendered.rfind("{", 0, rendered.find(name))
    if at < 0:
        return None
    try:
        value, end = _DECODER.raw_decode(rendered, at)
    except json.JSONDecodeError:
        return None
    key = next((key for key in KEYS if isinstance(value.get(key), dict)), None)
    if key is None or value.get("name") != name:
        return None
    opening = rendered[:at].strip().removesuffix("[").strip()
    closing = rendered[end:].strip().removeprefix("]").strip()
    return JsonCalls(opening, closing, key)


def exact_arguments(raw: str, arguments: dict[str, object]) -> str:
    """Return the characters in a call's text that stand for `arguments`.

    Falls back to JSON of our own for formats that do not write arguments as JSON.
    """
    for match in re.finditer(r"\{", raw):
        try:
            value, end = _DECODER.raw_decode(raw, match.start())
        except (json.JSONDecodeError, RecursionError):
            continue
        if value == arguments:
            return raw[match.start() : end]
    return json.dumps(arguments, ensure_ascii=False)


_BETWEEN = re.compile(r"[\s,;\[\]]*")


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at
