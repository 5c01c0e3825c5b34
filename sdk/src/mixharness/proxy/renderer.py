"""Chat messages to token ids and back, for any template that proves it can be extended (1.5).

Sampled ids are never tokenised again here: a conversation grows by deltas. Which ids belong to
which message is the history's business; how a family or a template writes is rendering/'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import renderers
import xxhash

from mixharness.engine import EngineTokenizer
from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.rendering.probes import PROBES, Pieces, Probe, misread, prove
from mixharness.proxy.rendering.rules import (
    CALLS_AS_TEXT,
    TOOLS_IN_SYSTEM,
    apply_rules,
    find_rules,
    split_turn,
    with_tools,
)
from mixharness.proxy.rendering.turn import ParsedTurn
from mixharness.proxy.templates import make_backend
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter

_USER = ChatMessage(role="user", content="a")
_EXAMPLE = ToolCall(id="call00001", name="NAME", arguments='{"ARGUMENT": "VALUE"}')
_TAIL = 32
"""Ids of a prompt's end that tell a template whether the turn began inside reasoning."""
_VERSION = "2"
"""Of what rules and deltas do; part of the hash."""

T = TypeVar("T")


class ChatRenderer:
    """Renders, extends and parses conversations of one engine's tokenizer.

    Attributes:
        stop_ids: tokens that end a sampled turn.
        context: longest prompt plus completion, in tokens.
        rules: names of the rules that this template needs (rendering/rules.py).
        exceptions: what keeps differing from a whole rendering (rendering/probes.py).
        rerenders: probes for which `extend` gives None, and what was wrong with each.
        hash: over template, tokenizer, rules and versions.

    Raises:
        TemplateError: at construction, when the template is unknown here, a control token is not
            one token, or a probe conversation shows that deltas and renderings differ.
    """

    def __init__(self, engine_tokenizer: EngineTokenizer) -> None:
        self.context = engine_tokenizer.context
        self._adapter = TokenizerAdapter(engine_tokenizer.tokenizer)
        try:
            self._set_up(engine_tokenizer)
        except TemplateError:
            parsers = engine_tokenizer.parsers
            if parsers is None or parsers.named or parsers.identity:
                raise
            self._set_up(replace(engine_tokenizer, parsers=None))  # calls as text may still do

    def _set_up(self, engine_tokenizer: EngineTokenizer) -> None:
        self._backend = make_backend(engine_tokenizer, self._adapter)
        given = () if self._backend.reads_calls else (CALLS_AS_TEXT,)
        self.rules = find_rules(self._backend.text, given) | self._backend.rules
        if CALLS_AS_TEXT in self.rules:
            self._backend.write_calls_as_text()
        self.stop_ids = self._backend.stop_ids
        self.end_strings = self._backend.end_strings
        self.reasoning_tags = self._backend.reasoning_tags
        self._opening = self._backend.render([_USER], ())[-_TAIL:]
        self._example = self._write_example() if TOOLS_IN_SYSTEM in self.rules else ""
        self.hash = self._hash(engine_tokenizer)
        self.rerenders: dict[str, str] = {}
        self.exceptions: frozenset[str] = frozenset()
        self._prove(engine_tokenizer.rerender)

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """Return the ids of a conversation's beginning, generation prompt included.

        Raises:
            BadRequest: the template refuses this conversation.
        """
        ready = [self._escaped(message) for message in messages]
        listed = [replace(tool, **self._adapter.escape(_fields(tool))) for tool in tools]
        if listed and TOOLS_IN_SYSTEM in self.rules:
            ready, listed = with_tools(ready, listed, self._example), []
        ruled = apply_rules(ready, self.rules, beginning=True)
        return _asked(lambda: self._backend.render(ruled, listed))

    def extend(
        self,
        prompt: Sequence[int],
        turn: Sequence[int],
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> list[int] | None:
        """Return what follows a turn: its missing closing tokens, messages, generation prompt.

        Args:
            prompt: ids before the turn; only the last few are looked at.
            turn: the turn's ids as sampled. One cut off by its length gets closing tokens here.
            messages: what came after it; no assistant message. May be empty.
            tools: the conversation's tools; no template repeats them.

        Returns:
            The delta, at a cost that does not depend on history; None if the conversation has to
            be rendered anew.

        Raises:
            BadRequest: the template refuses these messages.
        """
        if self._rerendered(messages):
            return None
        ready = [self._escaped(message) for message in messages]
        ruled = apply_rules(ready, self.rules, beginning=False)
        return _asked(lambda: self._backend.extend(list(prompt[-_TAIL:]), turn, ruled))

    def turn_ids(self, message: ChatMessage) -> list[int]:
        """Return an assistant message nobody sampled, as a policy would have sampled it.

        From after the generation prompt to the end-of-turn token. Environment, never trained.

        Raises:
            BadRequest: the template refuses this message.
        """
        return _asked(lambda: self._turn_ids(message))

    def parse(
        self, sampled_ids: Sequence[int], prompt: Sequence[int] = (), tools: Sequence[Tool] = ()
    ) -> ParsedTurn:
        """Return the message in sampled ids; a malformed tool call becomes text.

        Args:
            sampled_ids: as the engine gave them.
            prompt: ids before them; without any, those that every conversation ends with.
            tools: tell the types of arguments in formats that do not write them as JSON.
        """
        tail = list(prompt[-_TAIL:]) if prompt else self._opening
        try:
            turn = self._backend.parse(sampled_ids, tail, tools)
        except RecursionError:  # JSON nested beyond reading
            stopped = bool(sampled_ids) and sampled_ids[-1] in self.stop_ids
            return ParsedTurn(
                text=self.decode(sampled_ids[: -1 if stopped else None]), status="invalid"
            )
        return replace(turn, reasoning_tokens=self._count_reasoning(sampled_ids, turn))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens spelled out."""
        return self._adapter.decode(ids)

    def pieces(
        self, base: Sequence[ChatMessage], probe: Probe, tools: Sequence[Tool]
    ) -> Pieces | None:
        """Render a probe by deltas and whole; None when it cannot be extended."""
        ids = self.render(base, tools)
        for message, after in probe.rounds:
            turn = self.turn_ids(message)
            delta = self.extend(ids, turn, after, tools)
            if delta is None:
                return None
            ids += turn + delta
        later = [m for message, after in probe.rounds for m in (message, *after)]
        return Pieces(ids, self.render([*base, *later], tools))

    def _count_reasoning(self, sampled_ids: Sequence[int], turn: ParsedTurn) -> int:
        """Return how many sampled ids a turn's reasoning takes, its tags included."""
        if not turn.reasoning:
            return 0
        closing = self._adapter.convert_tokens_to_ids(self.reasoning_tags[1])
        if closing in sampled_ids:
            return sampled_ids.index(closing) + 1
        if not turn.text and not turn.tool_calls:
            return len(sampled_ids)
        # Tags of several tokens are left out.
        return min(len(self._adapter.encode(turn.reasoning)), len(sampled_ids))

    def _turn_ids(self, message: ChatMessage) -> list[int]:
        first, *rest = (
            ruled
            for part in split_turn(self._escaped(message), self.rules)
            for ruled in apply_rules([part], self.rules, beginning=False)
        )
        ids = self._backend.turn_ids(first)
        for part in rest:
            between = self._backend.extend(self._opening, ids, ()) or []
            ids += between + self._backend.turn_ids(part)
        return ids

    def _escaped(self, message: ChatMessage) -> ChatMessage:
        """Return a message in which no control string is control."""
        escape = self._adapter.escape
        return replace(
            message,
            content=escape(message.content),
            reasoning=escape(message.reasoning),
            name=escape(message.name),
            tool_calls=tuple(
                replace(call, name=escape(call.name), arguments=escape(call.arguments))
                for call in message.tool_calls
            ),
        )

    def _write_example(self) -> str:
        ids = self._turn_ids(ChatMessage(role="assistant", tool_calls=(_EXAMPLE,)))
        return self._adapter.decode(ids[:-1]).strip()

    def _rerendered(self, messages: Sequence[ChatMessage]) -> bool:
        """Say whether a probe like this one failed."""
        results_only = all(message.role == "tool" for message in messages)
        return any(not results_only or probe.results_only for probe in self._differing)

    def _prove(self, rerender: bool) -> None:
        """Check that deltas give the very ids of whole renderings, on probe conversations."""
        self._differing: list[Probe] = []
        if wrong := misread(self):
            raise TemplateError(f"probe 'parse': a turn with one tool call is read as {wrong}")
        passed, failed = prove(self)
        if failed and not rerender:
            name, problem = next(iter(failed.items()))
            raise TemplateError(
                f"probe {name!r}: {problem}, so sampled tokens could not be kept as they are"
            )
        if rerender:
            self._differing = [p for p in PROBES if p.name in failed or passed.get(p.name)]
            self.rerenders = failed | {n: ", ".join(sorted(e)) for n, e in passed.items() if e}
        else:
            self.exceptions = frozenset().union(*passed.values())

    def _hash(self, engine_tokenizer: EngineTokenizer) -> str:
        parts = (
            engine_tokenizer.renderer,
            renderers.__version__,
            self._backend.identity,
            str(engine_tokenizer.rerender),
            " ".join(sorted(self.rules)),
            _VERSION,
            engine_tokenizer.tokenizer.to_str(),
        )
        return xxhash.xxh3_128_hexdigest("\0".join(parts).encode())


def _fields(tool: Tool) -> dict[str, object]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }


def _asked(render: Callable[[], T]) -> T:
    """Call a template with messages of a harness; what it refuses is the request's fault."""
    try:
        return render()
    except Exception as exc:  # a template raises what it likes on messages it does not want
        raise BadRequest(f"messages: the chat template cannot carry this: {exc}") from exc
