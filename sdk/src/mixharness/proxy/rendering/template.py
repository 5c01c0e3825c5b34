"""Any chat template's own text, extended by deltas: what the template puts after a turn.

A delta is cut out of a short conversation that ends in the new messages, so it costs nothing for
history. That this gives what the whole conversation gives is proven by probes.py, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from renderers import ParsedResponse
from renderers.parsers import ToolParser

from mixharness.errors import TemplateError
from mixharness.parsers import TurnParsers
from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.rendering.anatomy import MARK, MARKED, USER, calling, dissect, following
from mixharness.proxy.rendering.attempts import (
    HARMONY_TOKENS,
    find_id_parser,
    read_harmony,
    read_response,
)
from mixharness.proxy.rendering.calls import HERMES, JsonCalls, learn
from mixharness.proxy.rendering.foreign import ForeignCalls, Written, find_foreign
from mixharness.proxy.rendering.jinja_template import JinjaTemplate
from mixharness.proxy.rendering.rules import SHORT_IDS
from mixharness.proxy.rendering.shape import Shape, find_shape, tool_list
from mixharness.proxy.rendering.turn import ParsedTurn, parsed_turn
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_CALL = ToolCall(id="call00001", name="lookfunc", arguments='{"spot": "here"}')
_SECOND = ToolCall(id="call00002", name="waitfunc", arguments='{"spot": "a \\"b\\"\\nc"}')


class TemplateBackend:
    """Renders, extends and parses with the text of a chat template.

    Raises:
        TemplateError: at construction, when the template's turns cannot be told apart.
    """

    def __init__(
        self,
        text: str,
        special_tokens: Mapping[str, str],
        adapter: TokenizerAdapter,
        parsers: TurnParsers | None = None,
    ) -> None:
        self.identity = f"{text}\0{sorted(special_tokens.items())}"
        self._template, self._adapter = JinjaTemplate(text, special_tokens), adapter
        self._shape = self._find_shape()
        self._turns = dissect(self._render, adapter.control, text)
        self._eos = special_tokens.get("eos_token", "")
        self.stop_ids, self.end_strings = self._ends()
        self.reasoning_tags = self._turns.reasoning
        self._harmony = all(t in text for t in ("<|channel|>", "<|message|>")) and all(
            adapter.convert_tokens_to_ids(t) is not None for t in HARMONY_TOKENS.values()
        )
        self._thinking = parsers if parsers and parsers.identity else None
        self._calls: JsonCalls | ForeignCalls | None = self._learn_calls()
        self._id_parser = None if self._calls or self._harmony else self._find_id_parser()
        if parsers and (parsers.named or not self.reads_calls):
            self._take_foreign(parsers)
        if self._thinking:
            self.identity += f"\0{self._thinking.identity}"

    @property
    def rules(self) -> frozenset[str]:
        """Return the named rules that are on whatever the messages are."""
        return frozenset({SHORT_IDS} if self._shape.short_ids else ())

    @property
    def reads_calls(self) -> bool:
        """Say whether calls in the template's own form can be read back."""
        return self._harmony or bool(self._calls or self._id_parser)

    def write_calls_as_text(self) -> None:
        """Read calls in Hermes form from now on, because they are shown in that form."""
        self._harmony, self._calls, self._id_parser = False, HERMES, None
        self._turns = replace(self._turns, call_end=self._turns.end)
        self.stop_ids, self.end_strings = self._ends()

    def text(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        """Return a conversation as text, generation prompt included."""
        return self._render(messages, tools, prompt=True)

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """Return a conversation's ids, generation prompt included."""
        return self._adapter.encode(self.text(messages, tools))

    def extend(
        self, tail: Sequence[int], turn: Sequence[int], messages: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return what follows a turn; None when the template shows no such turn."""
        called = self._called(messages)
        text = self.text([USER, calling(called) if called else MARKED, *messages])
        end = self._turns.call_end if called else self._turns.middle_end
        at = text.find(end, text.rfind(MARK))
        if MARK not in text or at < 0:
            return None
        return self._closing(turn) + self._adapter.encode(text[at + len(end) :])

    def turn_ids(self, message: ChatMessage) -> list[int]:
        """Return an assistant message from after the generation prompt to its end-of-turn token."""
        return self._adapter.encode(self._turn(message))

    def parse(
        self, sampled_ids: Sequence[int], tail: Sequence[int], tools: Sequence[Tool]
    ) -> ParsedTurn:
        """Return the message in sampled ids; a malformed tool call becomes text."""
        if self._harmony:
            return read_harmony(self._adapter, sampled_ids)
        stopped = bool(sampled_ids) and sampled_ids[-1] in self.stop_ids
        ids = list(sampled_ids[:-1] if stopped else sampled_ids)
        if self._id_parser is not None:
            return self._read_ids(self._id_parser, ids)
        text, reasoning = self._split(self._adapter.decode(ids))
        rest, found, malformed = (self._calls or HERMES).read(text, tools)
        return parsed_turn(rest, reasoning, found, malformed)

    def _read_ids(self, parser: ToolParser, ids: list[int]) -> ParsedTurn:
        """Read a turn with a parser of `renderers`; a call inside reasoning is only thought of."""
        whole = self._adapter.decode(ids)
        reasoning = self._split(whole)[1]
        if self._thinks(whole):
            closing = self._adapter.convert_tokens_to_ids(self.reasoning_tags[1])
            ids = ids[ids.index(closing) + 1 :] if closing in ids else []
        rest_ids, attempts = parser.extract(ids)
        text = self._adapter.decode(rest_ids).strip()
        return read_response(self._adapter, ids, ParsedResponse(text, reasoning, attempts))

    def _render(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), *, prompt: bool = False
    ) -> str:
        shaped = [self._shape.message(message) for message in messages]
        return self._template.render(shaped, tool_list(tools), prompt=prompt)

    def _ends(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the ids that end a sampled turn, and all that may end one in history."""
        turns = self._turns
        stops = {t for t in (turns.end, turns.call_end, self._eos) if t}
        ids = {self._adapter.convert_tokens_to_ids(token) for token in stops}
        known = sorted(token for token in ids if token is not None)
        return tuple(known), tuple(sorted(stops | {turns.middle_end}))

    def _find_shape(self) -> Shape:
        shape = find_shape(lambda sample: self._template.render(sample, None, prompt=True))
        turn = replace(MARKED, content="a", reasoning=MARK)
        for key in _REASONING_KEYS:
            keyed = replace(shape, reasoning_key=key)
            for after in (following(turn), []):
                messages = [keyed.message(message) for message in (USER, turn, *after)]
                try:
                    if MARK in self._template.render(messages, None, prompt=False):
                        return keyed
                except Exception:  # a template raises what it likes
                    continue
        return shape

    def _learn_calls(self) -> JsonCalls | None:
        try:
            written = self._written((_CALL,))
        except Exception:  # a template without tools
            return None
        return learn(written, _CALL.name)

    def _find_id_parser(self) -> ToolParser | None:
        try:
            ids = self.turn_ids(ChatMessage(role="assistant", tool_calls=(_CALL,)))[:-1]
        except Exception:  # a template without tools
            return None
        return find_id_parser(self._adapter, ids, (_CALL.name, _CALL.arguments))

    def _take_foreign(self, parsers: TurnParsers) -> None:
        """Read calls with a parser of the engine's, if one reads what the template writes.

        Raises:
            TemplateError: the one that was named does not.
        """
        calls = [(_CALL,), (_CALL, _SECOND)] if self._turns.parallel else [(_CALL,)]
        try:
            probes = [Written(text=self._written(each), calls=each) for each in calls]
        except Exception:  # a template without tools
            probes = []
        found = find_foreign(parsers.call_parsers, probes, self._adapter.control)
        if found:
            self._harmony, self._calls, self._id_parser = False, found, None
            self.identity += f"\0{found.parser.identity}"
        elif parsers.named:
            raise TemplateError("the named tool parser does not read the calls of this template")

    def _written(self, calls: Sequence[ToolCall]) -> str:
        """Return a turn with calls only, without reasoning and its end-of-turn token."""
        turn = self._turn(ChatMessage(role="assistant", tool_calls=tuple(calls)))
        return self._split(turn.removesuffix(self._turns.call_end))[0]

    def _called(self, messages: Sequence[ChatMessage]) -> list[tuple[str, str]]:
        """Return id and tool of the calls that the first messages are the results of."""
        called: list[tuple[str, str]] = []
        for message in messages:
            if message.role != "tool":
                break
            called.append((message.tool_call_id, message.name or "a"))
        return called if self._turns.parallel else called[-1:]

    def _closing(self, turn: Sequence[int]) -> list[int]:
        """Return what ends a turn that was cut off by its length; nothing for the others."""
        if turn and turn[-1] in self.stop_ids:
            return []
        text = self._adapter.decode(turn)
        thinking = not self._harmony and self._thinks(text) and self.reasoning_tags[1] not in text
        closing = self.reasoning_tags[1] if thinking else ""
        return self._adapter.encode(closing + self._turns.middle_end)

    def _thinks(self, turn: str) -> bool:
        """Say whether a turn begins with reasoning, because of the prompt or of itself."""
        opening = self.reasoning_tags[0]
        opened = bool(self._turns.no_reasoning) or turn.lstrip().startswith(opening)
        return bool(opening) and opened

    def _split(self, turn: str) -> tuple[str, str]:
        """Return text and reasoning of a turn; what was never closed is all reasoning."""
        if self._thinking:
            return self._thinking.split(turn)
        if not self._thinks(turn):
            return turn, ""
        opening, closing = self.reasoning_tags
        reasoning, closed, text = turn.lstrip().removeprefix(opening).partition(closing)
        return (text if closed else ""), reasoning.strip()

    def _turn(self, message: ChatMessage) -> str:
        """Return the text of a turn, as a policy would have written it."""
        turns = self._turns
        try:
            whole, end = self._render([USER, message, *following(message)]), turns.middle_end
        except Exception:  # not every template takes a result where nothing was called
            whole, end = self._render([USER, message]), turns.end
        if message.tool_calls:
            end = turns.call_end
        if whole.startswith(turns.prompt):
            start, closing = len(turns.prompt), ""
        elif whole.startswith(turns.past):
            start, closing = len(turns.past), turns.no_reasoning
        else:
            raise TemplateError("a turn does not begin with what the generation prompt begins")
        at = whole.find(end, start)
        if at < 0:
            raise TemplateError(f"a turn does not end with {end}")
        return closing + whole[start : at + len(end)]
