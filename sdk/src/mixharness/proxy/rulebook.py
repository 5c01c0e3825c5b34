"""The rules that every harness has (TOKENS_AND_TREES 1.3); plugins declare more.

What needs no rule: dialects read neither `cache_control` nor signatures and take a string for a
list of one text; fingerprint.py compares tool inputs as values and no ids at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.proxy.rules import MatchRule, Recall, RenderRule

_BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE)
_BUDGET = re.compile(r"<total_tokens>\d+ tokens left</total_tokens>")
_STAMP = re.compile(r"\A(?:\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2}[^\]\n]*\] ?)+")
_CONTEXT = ("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>", "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>")
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)

Change = Callable[[ChatMessage], ChatMessage]


def _without(pattern: re.Pattern[str], *roles: str) -> Change:
    def change(message: ChatMessage) -> ChatMessage:
        if message.role not in roles:
            return message
        return replace(message, content=pattern.sub("", message.content))

    return change


def _budget(message: ChatMessage) -> ChatMessage:
    *pieces, last = _BUDGET.split(message.content)
    if message.role not in ("user", "tool") or not pieces:
        return message
    return replace(message, content="".join((*(piece.rstrip() for piece in pieces), last)))


def _context(message: ChatMessage) -> ChatMessage:
    if message.role != "user" or _CONTEXT[0] not in message.content:
        return message
    pieces = message.content.split(_CONTEXT[0])
    # A block that is not closed is somebody's text.
    kept = [
        piece.partition(_CONTEXT[1])[2] if _CONTEXT[1] in piece else _CONTEXT[0] + piece
        for piece in pieces[1:]
    ]
    return replace(message, content="".join((pieces[0].rstrip(), *kept)).strip())


def _thinking_apart(message: ChatMessage) -> ChatMessage:
    thoughts, at = [message.reasoning], 0
    while message.role == "assistant" and (found := _THINK.match(message.content, at)):
        thoughts.append(found[1].strip())
        at = found.end()
    return replace(message, reasoning="".join(thoughts), content=message.content[at:])


def _blank(message: ChatMessage) -> ChatMessage:
    empty = message.role == "assistant" and not message.content.strip()
    return replace(message, content="") if empty else message


_billing = _without(_BILLING, "system")
_stamp = _without(_STAMP, "user")

MATCH_RULES = (
    # Its suffix is a hash over the first user text, so it changes when a history is compacted.
    MatchRule("billing_header", 1, _billing),
    MatchRule("token_budget", 1, _budget),
    MatchRule("timestamp", 1, _stamp),
    # The same thoughts, in a field of their own or in front of the text.
    MatchRule("inline_think", 1, _thinking_apart),
    MatchRule("blank_text", 1, _blank),
)
"""Always on, for every harness."""


def _each(change: Change) -> Callable[[ChatRequest, Recall], ChatRequest]:
    """Return a rule that changes every message and drops those of which nothing is left."""

    def apply(request: ChatRequest, recall: Recall) -> ChatRequest:
        pairs = ((message, change(message)) for message in request.messages)
        kept = tuple(new for old, new in pairs if new.content or not old.content)
        return replace(request, messages=kept)

    return apply


def _reattach(request: ChatRequest, recall: Recall) -> ChatRequest:
    shown = recall(request)
    messages = tuple(
        shown[index] if index in shown and not message.reasoning else message
        for index, message in enumerate(request.messages)
    )
    return replace(request, messages=messages)


RENDER_RULES = (
    RenderRule("drop_billing_header", 1, _each(_billing)),
    RenderRule("drop_token_budget", 1, _each(_budget)),
    RenderRule("drop_timestamp", 1, _each(_stamp)),
    # A block that moves to the end with every call; without it the history only grows.
    RenderRule("drop_runtime_context", 1, _each(_context)),
    RenderRule("reattach_reasoning", 1, _reattach),
)
"""Off unless the run file names them."""


def bare(message: ChatMessage) -> ChatMessage:
    """Return an assistant message without its thoughts, be they in a field or before the text."""
    apart = _thinking_apart(message)
    return replace(apart, reasoning="", content=apart.content.strip())
