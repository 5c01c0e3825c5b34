"""Which agent made a call and what for (TOKENS_AND_TREES section 2): hints first, then structure.

Pruning by role is done in tree/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
import xxhash

from mixharness.harness import CallIdentity, Harness, RequestView
from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.proxy.fingerprint import Fingerprinter
from mixharness.types import CallRole

log = structlog.get_logger()

_TELLING = 24
"""Characters from which on a text found inside another one is no accident."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """How a conversation starts."""

    tools: bytes
    system: bytes
    first: str
    """The first user text."""

    def like(self, other: _Beginning) -> bool:
        """Say whether it is the same but for the tools, which may come late."""
        return (self.system, self.first) == (other.system, other.first)

    @property
    def name(self) -> str:
        return xxhash.xxh3_64_hexdigest(self.tools + self.system + self.first.encode())[:8]


class Roles:
    """Identifies the calls of one rollout: what the harness says wins, else structure.

    By structure the first request is the main agent's. A first request without tools gives way to
    the first one that has some, because programs ask for titles and the like before they start.
    Other tools and another system text, or a first user text that is a tool's input, make a
    sub-agent; a request without tools is asked on the side.

    Attributes:
        guessed: the last identity was told from structure.
        demoted: calls taken for the main agent's until it turned out to be another one.
    """

    def __init__(self, harness: Harness[Any], fingerprinter: Fingerprinter) -> None:
        self._harness = harness
        self._fingerprinter = fingerprinter
        self._main: _Beginning | None = None
        self._main_has_tools = False
        self._inputs: list[str] = []
        self._texts: dict[str, str] = {}
        self._early: list[str] = []
        """Calls taken for the main agent's while no request had tools."""
        self.guessed = False
        self.demoted: list[str] = []

    def identify(self, view: RequestView, request: ChatRequest) -> CallIdentity:
        """Return who made a call and what for."""
        try:
            hinted = self._harness.role_of(view)
        except Exception as exc:  # a plugin's mistake must not cost the rollout
            log.warning("role_of_failed", harness=self._harness.name, error=repr(exc))
            hinted = None
        self.guessed = hinted is None
        return hinted or self.guess(request)

    def guess(self, request: ChatRequest) -> CallIdentity:
        """Return who made a call and what for, as its structure tells by now."""
        begins, tools = self._beginning(request), bool(request.tools)
        if self._main is None or (tools and not self._main_has_tools):
            if self._main is not None and not begins.like(self._main):
                self.demoted = self._early
            self._main, self._main_has_tools, self._early = begins, tools, []
        main, same = self._main, begins.like(self._main)
        if same and tools == self._main_has_tools:
            return CallIdentity()  # its tools may change on the way
        spawned = not same and self._spawned(begins)
        if (begins.tools, begins.system) == (main.tools, main.system) and not spawned:
            return CallIdentity()  # its history may be compacted
        if tools or spawned:
            return CallIdentity(CallRole.SUBAGENT, f"subagent-{begins.name}")
        if same and any(message.role == "assistant" for message in request.messages):
            return CallIdentity(CallRole.COMPACTION)
        return CallIdentity(CallRole.AUXILIARY, f"auxiliary-{begins.name}")

    def saw(self, call_id: str, shown: ChatMessage, *, guessed: bool) -> None:
        """Remember an answer.

        Sub-agents begin with the inputs of its tools, compacted histories with its words.
        """
        for call in shown.tool_calls:
            self._inputs += _texts_in(call.arguments)
        if guessed and len(shown.content) >= _TELLING:
            self._texts[call_id] = shown.content.strip()
        if guessed and not self._main_has_tools:
            self._early.append(call_id)

    def quoted(self, request: ChatRequest) -> str | None:
        """Return the latest call, told from structure, whose whole text the request quotes."""
        contents = [message.content for message in request.messages]
        for call_id, text in reversed(self._texts.items()):
            if any(text in content for content in contents):
                return call_id
        return None

    def _spawned(self, begins: _Beginning) -> bool:
        text = begins.first.strip()
        return any(
            text == given or (len(given) >= _TELLING and text.endswith(given))
            for given in self._inputs
        )

    def _beginning(self, request: ChatRequest) -> _Beginning:
        tools = self._fingerprinter.root(request.tools)
        leading = request.messages[:1] if request.messages[0].role == "system" else ()
        users = (message.content for message in request.messages if message.role == "user")
        system = b"".join(self._fingerprinter.messages(tools, leading, request.tools))
        return _Beginning(tools, system, next(users, ""))


def _texts_in(arguments: str) -> Iterator[str]:
    """Yield the strings among a tool call's arguments, at any depth."""
    try:
        waiting = [orjson.loads(arguments or "{}")]
    except orjson.JSONDecodeError:
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and value.strip():
            yield value.strip()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
