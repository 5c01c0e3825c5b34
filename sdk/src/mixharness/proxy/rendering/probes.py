"""The proof that a delta gives what a whole rendering gives, and what it gives up to (section 1).

Probes are conversations; what counts as the same is decided here and nowhere else.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.rendering.turn import ParsedTurn

TOKENS_STAY = "tokens_stay"
REASONING_STAYS = "reasoning_stays"
TOOLS_STAY = "tools_stay"
SYSTEM_STAYS = "system_stays"
END_STAYS = "end_stays"

EXCEPTIONS = {
    TOKENS_STAY: "a turn's first tokens stay as they are where its text, joined to the prompt's, "
    "would be cut into others",
    REASONING_STAYS: "reasoning of earlier turns, and an empty reasoning block, stay where the "
    "template drops them",
    END_STAYS: "the end-of-turn token that was sampled stays where the template writes another",
    TOOLS_STAY: "the tool list stays where it stood when the template moves or drops it",
    SYSTEM_STAYS: "the system text stays where it stood when the template moves or drops it",
}
"""What may differ from a whole rendering of the template, because sampled tokens are kept."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation: each turn and what comes after it."""

    name: str
    rounds: tuple[tuple[ChatMessage, tuple[ChatMessage, ...]], ...]

    @property
    def results_only(self) -> bool:
        """Say whether nothing but tool results follows a turn."""
        return all(m.role == "tool" for _, after in self.rounds for m in after)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A conversation put together from deltas, and the same rendered whole."""

    deltas: Sequence[int]
    whole: Sequence[int]


class Proven(Protocol):
    """What has to pass: a renderer with rules applied."""

    reasoning_tags: tuple[str, str]
    end_strings: tuple[str, ...]

    def pieces(
        self, base: Sequence[ChatMessage], probe: Probe, tools: Sequence[Tool]
    ) -> Pieces | None:
        """Render a probe both ways; None when it cannot be extended."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def turn_ids(self, message: ChatMessage) -> list[int]:
        """Return an assistant message as a policy would have sampled it."""

    def parse(
        self, sampled_ids: Sequence[int], prompt: Sequence[int] = (), tools: Sequence[Tool] = ()
    ) -> ParsedTurn:
        """Return the message in sampled ids."""


_DIFFER = "extending a conversation and rendering it whole give different token ids"
TOOLS = (Tool(name="run", description="Run it.", parameters={"type": "object"}),)
_SYSTEM = ChatMessage(role="system", content="Be brief.")
_ASK = ChatMessage(role="user", content="List the files.\n")
_USER = ChatMessage(role="user", content="Go on <tool_call>.")
_CALLS = (
    ToolCall(id="call10x0", name="run", arguments='{"command": "ls"}'),
    ToolCall(id="call10x1", name="run", arguments='{"command": "pwd"}'),
)
_RESULTS = tuple(
    ChatMessage(role="tool", tool_call_id=call.id, name=call.name, content=f"Result of {call.id}")
    for call in _CALLS
)
_PLAIN = ChatMessage(role="assistant", content="Here.")
_BOTH = ChatMessage(role="assistant", content="Both.", tool_calls=_CALLS)
_ONE = ChatMessage(role="assistant", tool_calls=_CALLS[:1])
_THOUGHT = ChatMessage(role="assistant", content="I look.", reasoning="Hm", tool_calls=_CALLS[:1])
_DONE = ChatMessage(role="assistant", content="Done.", reasoning="So")

PROBES = (
    Probe("user", ((_PLAIN, (_USER,)),)),
    Probe("system", ((_PLAIN, (_SYSTEM, _USER)),)),
    Probe("tools", ((_BOTH, (*_RESULTS, _USER)),)),
    Probe("two calls in a row", ((_ONE, _RESULTS[:1]), (_ONE, _RESULTS[:1]))),
    Probe("reasoning", ((_THOUGHT, _RESULTS[:1]), (_ONE, _RESULTS[:1]))),
    Probe("reasoning then user", ((_THOUGHT, _RESULTS[:1]), (_DONE, (_USER,)))),
)


def prove(renderer: Proven) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
    """Check every probe.

    Returns:
        Names of passed probes with the exceptions that each needed, and of failed ones with what
        was wrong.
    """
    passed: dict[str, frozenset[str]] = {}
    failed: dict[str, str] = {}
    for probe in PROBES:
        try:
            both = _both_ways(renderer, probe)
            needed = next((e for e in _subsets() if _same(renderer, both, e)), None)
        except Exception as exc:  # a template raises what it likes
            failed[probe.name] = f"{type(exc).__name__}: {exc}"
            continue
        if needed is None:
            failed[probe.name] = _DIFFER
        else:
            passed[probe.name] = needed
    return passed, failed


def misread(renderer: Proven) -> str:
    """Return what a turn that calls a tool is read as, if that is not what was written."""
    turn = renderer.parse(renderer.turn_ids(_ONE), (), TOOLS)
    read = [(name, json.loads(arguments)) for name, arguments in turn.tool_calls]
    written = [(call.name, json.loads(call.arguments)) for call in _ONE.tool_calls]
    return "" if read == written and not turn.text else f"{turn.text!r} with the calls {read}"


def _subsets() -> Iterator[frozenset[str]]:
    """Yield sets of exceptions, the smallest first."""
    for size in range(len(EXCEPTIONS) + 1):
        yield from map(frozenset, itertools.combinations(EXCEPTIONS, size))


def _both_ways(renderer: Proven, probe: Probe) -> Callable[[bool, bool], Pieces | None]:
    """Return the probe's pieces, with or without system text and tools; each is made once."""

    @cache
    def pieces(system: bool, tools: bool) -> Pieces | None:
        base = (_SYSTEM, _ASK) if system else (_ASK,)
        return renderer.pieces(base, probe, TOOLS if tools else ())

    return pieces


def _same(
    renderer: Proven, both: Callable[[bool, bool], Pieces | None], exceptions: frozenset[str]
) -> bool:
    pieces = both(SYSTEM_STAYS not in exceptions, TOOLS_STAY not in exceptions)
    if pieces is None:
        return False
    deltas, whole = pieces.deltas, pieces.whole
    if deltas == whole or not exceptions & {TOKENS_STAY, REASONING_STAYS, END_STAYS}:
        return deltas == whole
    texts = renderer.decode(deltas), renderer.decode(whole)
    if REASONING_STAYS in exceptions and all(renderer.reasoning_tags):
        opening, closing = map(re.escape, renderer.reasoning_tags)
        block = re.compile(f"{opening}.*?{closing}\\s*", re.DOTALL)
        texts = block.sub("", texts[0]), block.sub("", texts[1])
    if END_STAYS in exceptions:
        end = re.compile("|".join(map(re.escape, renderer.end_strings)))
        texts = end.sub("", texts[0]), end.sub("", texts[1])
    return texts[0] == texts[1]
