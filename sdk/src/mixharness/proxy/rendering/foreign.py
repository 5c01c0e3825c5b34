"""Tool calls as a parser reads them that the engine brought along, held to what was sampled.

Which parsers there are is the engine's; how a template is rendered is template.py's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mixharness.parsers import CallParser
from mixharness.proxy.chat import Tool, ToolCall
from mixharness.proxy.rendering.calls import exact_arguments
from mixharness.proxy.tool_arguments import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCalls:
    """Reads a turn's calls with a parser that does not say what it left out."""

    parser: CallParser
    first: str
    """Control token at which calls begin; empty when there is none."""
    each: str
    """Control token that stands once before every call, or empty."""

    def read(
        self, text: str, tools: Sequence[Tool]
    ) -> tuple[str, list[tuple[str, str]], list[str]]:
        """Split a turn's text.

        Returns:
            What is not a call, stripped; (name, arguments) of each call, arguments in the sampled
            characters where they were sampled as JSON; and, if one call could not be read, all of
            them as one malformed text.
        """
        try:
            rest, found = self.parser.read(text, tools)
        except Exception:  # a parser raises what it likes
            rest, found = text, []
        calls = _runnable(text, found)
        if calls and (not self.each or text.count(self.each) == len(calls)):
            return rest.strip(), calls, []
        if not self.first or self.first not in text:
            return text.strip(), [], []
        prose, first, broken = text.partition(self.first)
        return prose.strip(), [], [(first + broken).strip()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A turn that a template wrote: its text, with nothing but calls in it."""

    text: str
    calls: Sequence[ToolCall]


def find_foreign(
    parsers: Callable[[], Iterable[CallParser]],
    probes: Sequence[Written],
    control: re.Pattern[str],
) -> ForeignCalls | None:
    """Return the first parser that reads back what a template wrote.

    Args:
        parsers: yields those to try, in their order; not asked if no call was written.
        probes: the first has one call, whose tool's name is found nowhere else in the turn. None
            if the template has no calls.
        control: matches control tokens.
    """
    if not probes or probes[0].calls[0].name not in probes[0].text:
        return None
    one = probes[0]
    tokens = control.findall(one.text.partition(one.calls[0].name)[0]) or [""]
    each = tokens[-1]
    if any(probe.text.count(each) != len(probe.calls) for probe in probes):
        each = ""
    for parser in parsers():
        found = ForeignCalls(parser=parser, first=tokens[0], each=each)
        if all(_reads(found, probe) for probe in probes):
            return found
    return None


def _reads(found: ForeignCalls, probe: Written) -> bool:
    schema = {"type": "object", "properties": {"spot": {"type": "string"}}}
    names = dict.fromkeys(call.name for call in probe.calls)
    tools = [Tool(name=name, description="Look.", parameters=schema) for name in names]
    rest, calls, malformed = found.read(probe.text, tools)
    read = [(name, read_json(arguments)) for name, arguments in calls]
    written = [(call.name, read_json(call.arguments)) for call in probe.calls]
    return (rest, read, malformed) == ("", written, [])


def _runnable(text: str, found: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the calls as sampled, or nothing when no harness could run one of them."""
    calls: list[tuple[str, str]] = []
    at = 0
    for name, arguments in found:
        try:
            value = read_json(arguments or "{}")
        except ValueError:
            return []
        if not name or not isinstance(value, dict):
            return []
        exact = exact_arguments(text[at:], value)
        place = text.find(exact, at)
        at = place + len(exact) if place >= 0 else at
        calls.append((name, exact))
    return calls
