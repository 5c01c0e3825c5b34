"""Named rules for what a template cannot take as it comes, instead of an error or a silent loss.

They shape what the policy reads, for every harness alike, and are part of the renderer's hash.
How one message is spelled is shape.py's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.rendering.shape import tool_object

SYSTEM_INTO_USER = "system_into_user"
SYSTEM_AS_USER = "system_as_user"
MERGE_USERS = "merge_users"
USER_INTO_RESULT = "user_into_result"
CALLS_AS_TEXT = "calls_as_text"
TOOLS_IN_SYSTEM = "tools_in_system"
ONE_CALL_A_TURN = "one_call_a_turn"
TEXT_APART = "text_apart"
TEXT_DROPPED = "text_dropped"
SHORT_IDS = "short_ids"

RULES = {
    SYSTEM_INTO_USER: "the system text stands before the first user message, in it",
    SYSTEM_AS_USER: "a later system message becomes a user message inside <system> tags",
    MERGE_USERS: "user messages in a row become one, a blank line between them",
    USER_INTO_RESULT: "a user message after a tool result is appended to the result",
    CALLS_AS_TEXT: "tool calls and results are written in Hermes form, results as a user message",
    TOOLS_IN_SYSTEM: "the tool list is written into the system text, with an example of a call",
    ONE_CALL_A_TURN: "an unsampled message with several calls becomes one message per call",
    TEXT_APART: "an unsampled message with text and calls becomes two messages",
    TEXT_DROPPED: "an unsampled message with calls loses its text: the template writes one only",
    SHORT_IDS: "ids of tool calls become nine characters that stand for them",
}
"""Every rule and what it does."""


def apply_rules(
    messages: Sequence[ChatMessage], rules: Collection[str], *, beginning: bool
) -> list[ChatMessage]:
    """Return messages in a form that the template takes.

    Args:
        messages: with control text escaped.
        rules: names of those that are on.
        beginning: the conversation begins here; otherwise a turn stands before.
    """
    out = [part for message in messages for part in split_turn(message, rules)]
    if CALLS_AS_TEXT in rules:
        out = [_as_text(message) for message in out]
    if beginning and SYSTEM_INTO_USER in rules:
        out = _system_into_user(out)
    if SYSTEM_AS_USER in rules:
        out = [m if beginning and i == 0 else _system_as_user(m) for i, m in enumerate(out)]
    if USER_INTO_RESULT in rules:
        out = _joined(out, "tool", "user")
    if MERGE_USERS in rules or CALLS_AS_TEXT in rules:
        out = _joined(out, "user", "user")
    return out


def split_turn(message: ChatMessage, rules: Collection[str]) -> list[ChatMessage]:
    """Return the messages that an assistant message is written as; of others just the message."""
    calls = message.tool_calls
    if not calls or CALLS_AS_TEXT in rules:
        return [message]
    groups = [(call,) for call in calls] if ONE_CALL_A_TURN in rules else [calls]
    first, *rest = groups
    later = [ChatMessage(role="assistant", tool_calls=group) for group in rest]
    if TEXT_DROPPED in rules:
        message = replace(message, content="")
    if TEXT_APART in rules and message.content:
        call = ChatMessage(role="assistant", tool_calls=first)
        return [replace(message, tool_calls=()), call, *later]
    return [replace(message, tool_calls=first), *later]


def with_tools(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], example: str
) -> list[ChatMessage]:
    """Return messages whose system text lists the tools; `example` is a call as it is written."""
    listed = "\n".join(json.dumps(tool_object(tool), ensure_ascii=False) for tool in tools)
    text = (
        f"# Tools\n\nYou may call these functions:\n<tools>\n{listed}\n</tools>\n\n"
        f"Write a call like this:\n{example}"
    )
    if messages and messages[0].role == "system":
        first = replace(messages[0], content=f"{messages[0].content}\n\n{text}".lstrip())
        return [first, *messages[1:]]
    return [ChatMessage(role="system", content=text), *messages]


def _as_text(message: ChatMessage) -> ChatMessage:
    if message.role == "tool":
        text = f"<tool_response>\n{message.content}\n</tool_response>"
        return ChatMessage(role="user", content=text)
    blocks = [
        f'<tool_call>\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, '
        f'"arguments": {call.arguments or "{}"}}}\n</tool_call>'
        for call in message.tool_calls
    ]
    text = "\n".join([*([message.content] if message.content else []), *blocks])
    return replace(message, content=text, tool_calls=())


def _system_into_user(messages: list[ChatMessage]) -> list[ChatMessage]:
    if not messages or messages[0].role != "system":
        return messages
    system, *rest = messages
    if not rest or rest[0].role != "user":
        return [replace(system, role="user"), *rest]
    first = replace(rest[0], content=f"{system.content}\n\n{rest[0].content}")
    return [first, *rest[1:]]


def _system_as_user(message: ChatMessage) -> ChatMessage:
    if message.role != "system":
        return message
    return replace(message, role="user", content=f"<system>\n{message.content}\n</system>")


def _joined(messages: list[ChatMessage], first: str, second: str) -> list[ChatMessage]:
    """Append each message of role `second` to one of role `first` right before it."""
    out: list[ChatMessage] = []
    for message in messages:
        if out and out[-1].role == first and message.role == second:
            out[-1] = replace(out[-1], content=f"{out[-1].content}\n\n{message.content}")
        else:
            out.append(message)
    return out


_SYSTEM = ChatMessage(role="system", content="sysword")
_ONE = ChatMessage(role="user", content="oneword")
_TWO = ChatMessage(role="user", content="twoword")
_REPLY = ChatMessage(role="assistant", content="replyword")
_CALLS = (
    ToolCall(id="call10x0", name="lookfunc", arguments='{"spot": "hereword"}'),
    ToolCall(id="call10x1", name="waitfunc", arguments='{"spot": "thereword"}'),
)
_RESULTS = tuple(
    ChatMessage(role="tool", tool_call_id=call.id, name=call.name, content=word)
    for call, word in zip(_CALLS, ("seenword", "waitedword"), strict=True)
)
_CALL = ChatMessage(role="assistant", tool_calls=_CALLS[:1])
_SAID = ChatMessage(role="assistant", content="saidword", tool_calls=_CALLS[:1])
_BOTH = ChatMessage(role="assistant", tool_calls=_CALLS)
_TOOL = Tool(name="lookfunc", description="Descword.", parameters={"type": "object"})

_NEEDS: tuple[tuple[str, tuple[ChatMessage, ...], tuple[str, ...]], ...] = (
    (SYSTEM_INTO_USER, (_SYSTEM, _ONE), ("sysword", "oneword")),
    (MERGE_USERS, (_ONE, _TWO), ("oneword", "twoword")),
    (CALLS_AS_TEXT, (_ONE, _CALL, _RESULTS[0]), ("lookfunc", "hereword", "seenword")),
    (ONE_CALL_A_TURN, (_ONE, _BOTH, *_RESULTS), ("hereword", "thereword", "seen", "waited")),
    (TEXT_APART, (_ONE, _SAID, _RESULTS[0], _REPLY, _TWO), ("saidword", "hereword", "seenword")),
    (USER_INTO_RESULT, (_ONE, _CALL, _RESULTS[0], _TWO), ("seenword", "twoword")),
    (SYSTEM_AS_USER, (_ONE, _REPLY, _SYSTEM, _TWO), ("replyword", "sysword", "twoword")),
)
"""Rule, a conversation that does without it, and the words that must then stand in order."""


def find_rules(
    text: Callable[[Sequence[ChatMessage], Sequence[Tool]], str], given: Collection[str] = ()
) -> frozenset[str]:
    """Return the rules that a template needs: without one it raises, or loses or moves a message.

    Args:
        text: renders messages and tools as they are; may raise anything.
        given: rules that are needed for another reason.
    """
    rules = set(given)

    def holds(messages: Sequence[ChatMessage], tools: Sequence[Tool], words: Sequence[str]) -> bool:
        try:
            rendered = text(apply_rules(messages, rules, beginning=True), tools)
        except Exception:  # a template raises what it likes on messages it does not want
            return False
        at = 0
        for word in words:
            at = rendered.find(word, at) + 1
            if not at:
                return False
        return True

    for rule, messages, words in _NEEDS:
        if rule not in rules and not holds(messages, (), words):
            rules.add(rule)
            if rule == TEXT_APART and not holds(messages, (), words):
                rules ^= {TEXT_APART, TEXT_DROPPED}
    if CALLS_AS_TEXT in rules or not holds((_ONE,), (_TOOL,), ("Descword",)):
        rules.add(TOOLS_IN_SYSTEM)
    return frozenset(rules)
