"""A sampled turn as it was read, and what every way of rendering has in common. No reading here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mixharness.proxy.chat import ChatMessage, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """A sampled turn as a harness may be shown it."""

    text: str = ""
    """Malformed tool calls included, unless they are shown as something else."""
    prose: str = ""
    """The text without them."""
    reasoning: str = ""
    reasoning_tokens: int = 0
    """Sampled ids that the reasoning takes."""
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments), arguments exactly as sampled."""
    malformed: tuple[str, ...] = ()
    """Each tool call that no harness could run, as sampled."""
    status: str = "ok"
    """`ok`, `invalid` (a malformed tool call is shown as text) or `repaired`."""


def parsed_turn(
    text: str, reasoning: str, calls: Sequence[tuple[str, str]], malformed: Sequence[str]
) -> ParsedTurn:
    """Return a turn; malformed calls become text behind the rest of it."""
    return ParsedTurn(
        text="\n".join([*([text] if text else []), *malformed]),
        prose=text,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        malformed=tuple(malformed),
        status="invalid" if malformed else "ok",
    )


class Backend(Protocol):
    """One way to render: a family of `renderers`, or a template's own text.

    Messages come with control text escaped and the rules applied. What a template refuses may
    raise anything.
    """

    stop_ids: tuple[int, ...]
    end_strings: tuple[str, ...]
    """Tokens that end a turn, here or there."""
    reasoning_tags: tuple[str, str]
    """What stands before and after reasoning; empty when the template never shows any."""
    identity: str
    """All that changes what this renders, tokenizer and rules apart."""

    @property
    def rules(self) -> frozenset[str]:
        """Return the named rules that are on whatever the messages are."""

    @property
    def reads_calls(self) -> bool:
        """Say whether calls in the template's own form can be read back."""

    def write_calls_as_text(self) -> None:
        """Read calls in Hermes form from now on, because they are shown in that form."""

    def text(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        """Return a conversation as text, generation prompt included."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """Return a conversation's ids, generation prompt included."""

    def extend(
        self, tail: Sequence[int], turn: Sequence[int], messages: Sequence[ChatMessage]
    ) -> list[int] | None:
        """Return what follows a turn, or None if the template cannot; `tail` ends the prompt."""

    def turn_ids(self, message: ChatMessage) -> list[int]:
        """Return an assistant message from after the generation prompt to its end-of-turn token."""

    def parse(
        self, sampled_ids: Sequence[int], tail: Sequence[int], tools: Sequence[Tool]
    ) -> ParsedTurn:
        """Return the message in sampled ids."""
