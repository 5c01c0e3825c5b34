"""A model family that the package `renderers` knows, behind the same interface as any template."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from renderers import RenderedTokens, create_renderer

from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage, Tool
from mixharness.proxy.rendering.anatomy import USER, following
from mixharness.proxy.rendering.attempts import read_response
from mixharness.proxy.rendering.shape import Shape, find_shape, tool_list
from mixharness.proxy.rendering.turn import ParsedTurn
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter


class FamilyBackend:
    """Renders, extends and parses with a renderer of the package.

    Args:
        config: makes the renderer's configuration.
        adapter: of the tokenizer.
        reasoning_tags: what stands before and after reasoning in this family.

    Raises:
        TemplateError: a token of the family is missing from the tokenizer.
    """

    def __init__(
        self,
        config: Callable[[], Any],
        adapter: TokenizerAdapter,
        reasoning_tags: tuple[str, str] = ("<think>", "</think>"),
    ) -> None:
        self._adapter, self.reasoning_tags = adapter, reasoning_tags
        made = config()
        self.identity = made.model_dump_json()
        try:
            self._renderer = create_renderer(adapter, made)
        except Exception as exc:
            missing = " ".join(missing_tokens(config, adapter))
            problem = f"{missing} must each be one token" if missing else str(exc)
            message = f"the tokenizer cannot carry the chat template {made.name!r}: {problem}"
            raise TemplateError(message) from exc
        self.stop_ids = tuple(sorted(self._renderer.get_stop_token_ids()))
        self.end_strings = tuple(adapter.decode([token]) for token in self.stop_ids)
        self._shape = Shape()
        self._shape = find_shape(
            lambda sample: adapter.decode(
                self._renderer.render_ids(sample, add_generation_prompt=True)
            )
        )

    @property
    def rules(self) -> frozenset[str]:
        """Return the named rules that are on whatever the messages are."""
        return frozenset()

    @property
    def reads_calls(self) -> bool:
        """Say that calls in the family's own form can be read back."""
        return True

    def write_calls_as_text(self) -> None:
        """Do nothing: a family whose calls do not come through fails its probes."""

    def text(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        """Return a conversation as text, generation prompt included."""
        return self._adapter.decode(self.render(messages, tools))

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """Return a conversation's ids, generation prompt included."""
        shaped = [self._shape.message(message) for message in messages]
        rendered = self._renderer.render_ids(
            shaped, tools=tool_list(tools), add_generation_prompt=True
        )
        return list(rendered)

    def extend(
        self, tail: Sequence[int], turn: Sequence[int], messages: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return what follows a turn; None when the family would render history anew."""
        closed = bool(turn) and turn[-1] in self.stop_ids
        # A closed turn's reasoning state is settled, so its last id says all there is to know.
        tail, turn = (turn[-1:], turn[-1:]) if closed else (tail, turn)
        known = [*tail, *turn]
        rendered = self._renderer.bridge_to_next_turn(
            list(tail),
            known[len(tail) :],
            [self._shape.message(message) for message in messages or [USER]],
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
        """Return an assistant message from after the generation prompt to its end-of-turn token."""
        try:
            rendered = self._rendered([USER, message, *following(message)])
        except Exception:  # not every family takes a result where nothing was called
            rendered = self._rendered([USER, message])
        spans = zip(
            rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True
        )
        turn = [(token, sampled) for token, index, sampled in spans if index == 1]
        header = [token for token, _ in itertools.takewhile(lambda pair: not pair[1], turn)]
        return self._after_prompt(header, [token for token, sampled in turn if sampled])

    def _after_prompt(self, header: list[int], turn: list[int]) -> list[int]:
        """Return a turn as it goes on after a generation prompt that opens the reasoning.

        Args:
            header: what stands before the turn's text when the turn is past.
            turn: what stands there then, reasoning with both of its tags or none.
        """
        prompt = self._adapter.decode(self.render([USER], ()))
        bare = self._adapter.decode(self._rendered([USER]).token_ids)
        opened = prompt.removeprefix(bare).removeprefix(self._adapter.decode(header))
        opening, closing = map(self._adapter.convert_tokens_to_ids, self.reasoning_tags)
        if not opened.startswith(self.reasoning_tags[0]) or self.reasoning_tags[1] in opened:
            return turn
        if turn[:1] != [opening] or closing not in turn:
            return self._adapter.encode(f"\n{self.reasoning_tags[1]}\n\n") + turn
        end = turn.index(closing)
        blank = opened.removeprefix(self.reasoning_tags[0])
        thought = self._adapter.escape(self._adapter.decode(turn[1:end])).removeprefix(blank)
        return self._adapter.encode(thought) + turn[end:]

    def _rendered(self, messages: Sequence[ChatMessage]) -> RenderedTokens:
        return self._renderer.render([self._shape.message(message) for message in messages])

    def parse(
        self, sampled_ids: Sequence[int], tail: Sequence[int], tools: Sequence[Tool]
    ) -> ParsedTurn:
        """Return the message in sampled ids; a malformed tool call becomes text."""
        response = self._renderer.parse_response(
            list(sampled_ids), tools=tool_list(tools), prompt_ids=list(tail)
        )
        return read_response(self._adapter, sampled_ids, response)


class _AnyTokens(TokenizerAdapter):
    """Says that every token exists, and remembers which ones were asked for."""

    def __init__(self, adapter: TokenizerAdapter) -> None:
        super().__init__(adapter.tokenizer)
        self.asked: list[str] = []

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        self.asked.append(tokens)
        return super().convert_tokens_to_ids(tokens) or 0


def missing_tokens(config: Callable[[], Any], adapter: TokenizerAdapter) -> list[str]:
    """Return the tokens that a family wants and the tokenizer has not, in the order of asking."""
    anything = _AnyTokens(adapter)
    with contextlib.suppress(Exception):  # it asked for what it wants before
        create_renderer(anything, config())
    missing = [t for t in anything.asked if adapter.convert_tokens_to_ids(t) is None]
    return list(dict.fromkeys(missing))
