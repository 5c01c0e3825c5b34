"""Chat messages to token ids and back, through the package `renderers` (TOKENS_AND_TREES 1.5).

Sampled ids are never tokenised again here: a conversation grows by deltas. Which ids belong to
which message is the history's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import renderers
import xxhash
from renderers import ParsedToolCall, create_renderer

from mixharness.engine import EngineTokenizer
from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage, Tool
from mixharness.proxy.templates import PROBE_BASE, PROBE_TOOLS, PROBES, TEMPLATES
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter
from mixharness.proxy.tool_arguments import sampled_arguments

_USER = ChatMessage(role="user", content="a")
_RESULT = ChatMessage(role="tool", content="a")
_TAIL = 32
"""Ids of a prompt's end that tell a template whether the turn began inside reasoning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """A sampled turn as a harness may be shown it."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments), arguments exactly as sampled."""
    status: str = "ok"
    """`ok`, or `invalid` when a malformed tool call is shown as text."""


class ChatRenderer:
    """Renders, extends and parses conversations of one engine's tokenizer.

    Raises:
        TemplateError: at construction, when the template is unknown here, a control token is not
            one token, or a probe conversation shows that deltas and renderings differ.
    """

    def __init__(self, engine_tokenizer: EngineTokenizer) -> None:
        name, tokenizer = engine_tokenizer.renderer, engine_tokenizer.tokenizer
        template = TEMPLATES.get(name)
        if template is None:
            raise TemplateError(
                f"no renderer here can extend the chat template {name!r}; "
                f"these work: {', '.join(sorted(TEMPLATES))}"
            )
        missing = [token for token in template.tokens if tokenizer.token_to_id(token) is None]
        if missing:
            raise TemplateError(
                f"the tokenizer cannot carry the chat template {name!r}: "
                f"{' '.join(missing)} must each be one token"
            )
        self._adapter = TokenizerAdapter(tokenizer)
        self._renderer = create_renderer(self._adapter, template.config())
        self.stop_ids = tuple(sorted(self._renderer.get_stop_token_ids()))
        self.context = engine_tokenizer.context
        self.hash = _hash(name, template.config(), tokenizer.to_str())
        self._prove()

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """Return the ids of a conversation's beginning, generation prompt included."""
        return list(
            self._renderer.render_ids(
                [self._message(message) for message in messages],
                tools=self._tools(tools),
                add_generation_prompt=True,
            )
        )

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
            tools: the conversation's tools.

        Returns:
            The delta, at a cost that does not depend on history; None if the template cannot.
        """
        tail = list(prompt[-_TAIL:])
        # A closed turn's reasoning state is settled, so its last id says all there is to know.
        known = tail + list(turn[-1:] if turn and turn[-1] in self.stop_ids else turn)
        rendered = self._renderer.bridge_to_next_turn(
            tail,
            known[len(tail) :],
            [self._message(message) for message in messages or [_USER]],
            tools=self._tools(tools),
        )
        if rendered is None or rendered.token_ids[: len(known)] != known:
            return None
        delta = list(rendered.token_ids[len(known) :])
        if messages:
            return delta
        # What the template puts outside of messages is what stands between two turns.
        owners = rendered.message_indices[len(known) :]
        return [token for token, owner in zip(delta, owners, strict=True) if owner < 0]

    def turn_ids(self, message: ChatMessage) -> list[int]:
        """Return an assistant message nobody sampled, as a policy would have sampled it.

        From after the generation prompt to the end-of-turn token. Environment, never trained.
        """
        # A tool result follows, because templates drop reasoning that a user message follows.
        conversation = [self._message(m) for m in (_USER, message, _RESULT)]
        rendered = self._renderer.render(conversation)
        spans = zip(
            rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True
        )
        return [token for token, index, sampled in spans if index == 1 and sampled]

    def parse(self, sampled_ids: Sequence[int]) -> ParsedTurn:
        """Return the message in sampled ids; a malformed tool call becomes text."""
        parsed = self._renderer.parse_response(list(sampled_ids))
        calls: list[tuple[str, str]] = []
        text = [parsed.content] if parsed.content else []
        for attempt in parsed.tool_calls:
            call = _tool_call(attempt)
            if call is None:
                text.append(f"<tool_call>\n{attempt.raw}\n</tool_call>")
            else:
                calls.append(call)
        return ParsedTurn(
            text="\n".join(text),
            reasoning=parsed.reasoning_content or "",
            tool_calls=tuple(calls),
            status="ok" if len(calls) == len(parsed.tool_calls) else "invalid",
        )

    def _message(self, message: ChatMessage) -> dict[str, Any]:
        escape = self._adapter.escape
        out: dict[str, Any] = {"role": message.role, "content": escape(message.content)}
        if message.reasoning:
            out["reasoning_content"] = escape(message.reasoning)
        if message.tool_calls:
            out["tool_calls"] = [
                {"function": {"name": escape(c.name), "arguments": escape(c.arguments)}}
                for c in message.tool_calls
            ]
        return out

    def _tools(self, tools: Sequence[Tool]) -> list[Any] | None:
        """Return tools in the form chat templates were trained on."""
        functions = (
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
            for t in tools
        )
        wrapped = [{"type": "function", "function": self._adapter.escape(f)} for f in functions]
        return wrapped or None

    def _prove(self) -> None:
        """Check that a delta gives the very ids of a whole rendering, on probe conversations."""
        for probe in PROBES:
            base = self.render(PROBE_BASE, PROBE_TOOLS)
            turn = self.turn_ids(probe.turn)
            delta = self.extend(base, turn, probe.after, PROBE_TOOLS)
            whole = self.render([*PROBE_BASE, probe.turn, *probe.after], PROBE_TOOLS)
            if delta is None or base + turn + delta != whole:
                raise TemplateError(
                    f"probe {probe.name!r}: extending a conversation and rendering it whole give "
                    "different token ids, so sampled tokens could not be kept as they are"
                )


def _tool_call(attempt: ParsedToolCall) -> tuple[str, str] | None:
    """Return name and exact arguments, or None for what no harness could run."""
    if attempt.status != "ok" or not isinstance(attempt.name, str):
        return None
    if not isinstance(attempt.arguments, dict):
        return None
    arguments = sampled_arguments(attempt.raw)
    try:
        orjson.loads(arguments)  # Python's own parser lets NaN pass
    except orjson.JSONDecodeError:
        return None
    return attempt.name, arguments


def _hash(name: str, config: Any, tokenizer_json: str) -> str:
    parts = (name, renderers.__version__, config.model_dump_json(), tokenizer_json)
    return xxhash.xxh3_128_hexdigest("\0".join(parts).encode())
