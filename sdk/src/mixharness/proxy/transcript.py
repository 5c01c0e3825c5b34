"""Recorded bodies read back: what each call was asked and answered, without its dialect.

Bodies are written by log.py. Which tokens they stand for is the record's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixharness.proxy.bodies import Body
from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.proxy.dialects import Dialect
from mixharness.proxy.dialects.anthropic_messages import AnthropicMessages
from mixharness.proxy.dialects.openai_chat import OpenAIChat
from mixharness.proxy.dialects.openai_responses import OpenAIResponses
from mixharness.proxy.reading import read_json

_ANTHROPIC = AnthropicMessages()
_CHAT = OpenAIChat()
_RESPONSES = OpenAIResponses()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One call as its harness saw it."""

    request: ChatRequest
    answer: ChatMessage


@dataclass(frozen=True, slots=True)
class _Answered:
    """An answer in the form in which the next request of its dialect would hold it."""

    dialect: Dialect
    key: str
    """Where a request of this dialect has its messages."""
    items: Sequence[Mapping[str, Any]]


def read_exchanges(bodies: Iterable[Body]) -> dict[str, Exchange]:
    """Return call id to exchange, for every call of a rollout that was answered.

    Raises:
        ValueError: a response is of no dialect that is served here.
    """
    data: dict[str, dict[str, bytes]] = {"request": {}, "response": {}}
    for body in bodies:
        data[body.kind][body.call] = body.data
    requests, responses = data["request"], data["response"]
    return {
        call: _exchange(requests[call], response)
        for call, response in responses.items()
        if call in requests
    }


def _exchange(request: bytes, response: bytes) -> Exchange:
    """Read an answer as its dialect reads it when a harness sends it back."""
    body, answered = read_json(request), _answered(response)
    asked = answered.dialect.parse(body)
    before = body[answered.key]
    if isinstance(before, str):  # Responses takes a lone user message as text
        before = [{"role": "user", "content": before}]
    whole = answered.dialect.parse({**body, answered.key: [*before, *answered.items]})
    return Exchange(request=asked, answer=_joined(whole.messages[len(asked.messages) :]))


def _joined(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Return the one turn that consecutive assistant messages are."""
    return ChatMessage(
        role="assistant",
        content="".join(message.content for message in messages),
        reasoning="".join(message.reasoning for message in messages),
        tool_calls=tuple(call for message in messages for call in message.tool_calls),
    )


def _answered(response: bytes) -> _Answered:
    events = _events(response)
    first = events[0] if events else {}
    kind = str(first.get("type") or first.get("object"))
    if kind.startswith("message"):
        content = first["content"] if kind == "message" else _anthropic_content(events)
        return _Answered(_ANTHROPIC, "messages", [{"role": "assistant", "content": content}])
    if kind.startswith("chat.completion"):
        return _Answered(_CHAT, "messages", [_chat_message(events)])
    if kind.startswith("response"):
        return _Answered(_RESPONSES, "input", events[-1].get("response", first)["output"])
    raise ValueError(f"a response of no known dialect: {response[:80]!r}")


def _events(response: bytes) -> list[dict[str, Any]]:
    """Return a stream's events; a plain body counts as the only one."""
    if response.startswith(b"{"):
        return [read_json(response)]
    lines = (line.removeprefix(b"data:").strip() for line in response.split(b"\n"))
    return [read_json(line) for line in lines if line.startswith(b"{")]


def _anthropic_content(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put the blocks of a stream together."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            for field, piece in event["delta"].items():
                if field in ("text", "thinking", "partial_json"):
                    blocks[-1][field] += piece
    for block in blocks:
        partial = block.pop("partial_json")
        if partial:
            block["input"] = read_json(partial.encode())
    return blocks


def _chat_message(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the message of a completion, whole or in chunks, together."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    calls: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice.get("message") or choice.get("delta") or {}
        for field in ("content", "reasoning_content"):
            message[field] = message.get(field, "") + (delta.get(field) or "")
        for number, piece in enumerate(delta.get("tool_calls") or ()):
            index = piece.get("index", number)
            call = calls.setdefault(index, {**piece, "function": {"name": "", "arguments": ""}})
            for field, text in piece["function"].items():
                call["function"][field] += text or ""
    return {**message, "tool_calls": [calls[index] for index in sorted(calls)]}
