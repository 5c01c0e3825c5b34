"""OpenAI Responses. Text, function, custom and namespace tools; other content is refused.

Nothing is stored, so every request brings its whole conversation. Items and events have files of
their own beside this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from mixharness.proxy.chat import Answer, ChatMessage, ChatRequest, of_one_answer
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.fields import (
    bearer,
    each_item,
    flag,
    number,
    quoted,
    refuse,
    required,
    string,
    text,
)
from mixharness.proxy.dialects.openai_chat import openai_error, openai_overflow
from mixharness.proxy.dialects.responses_events import events, failure, response
from mixharness.proxy.dialects.responses_items import declared_tools, read_call, read_reasoning
from mixharness.proxy.dialects.seen import Seen

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_KINDS = ("input_text", "output_text", "text")
_CALLS = ("function_call", "custom_tool_call")
_STORED = "nothing is stored here; send the whole conversation as input"
_REFUSED = {
    "previous_response_id": _STORED,
    "conversation": _STORED,
    "prompt": _STORED,
    "background": "an answer is given in the response to its request",
}


class OpenAIResponses:
    """The dialect of `POST /v1/responses`."""

    name: ClassVar[str] = "openai_responses"
    path: ClassVar[str] = "/v1/responses"
    keep_alive: ClassVar[bytes] = b": keep-alive\n\n"
    end_status: ClassVar[int] = 400  # at 401 and 404 Codex asks again

    def parse(self, body: Mapping[str, Any], seen: Seen | None = None) -> ChatRequest:
        """Read a request body.

        Raises:
            BadRequest: with a sentence that says what is wrong.
        """
        refuse(body, _REFUSED)
        system = string(body, "instructions")
        first = [ChatMessage(role="system", content=system)] if system else []
        return ChatRequest(
            tools=tuple(declared.tool for declared in declared_tools(body).values()),
            max_tokens=number(body, "max_output_tokens"),
            stream=flag(body, "stream"),
            model=string(body, "model"),
            messages=(*first, *_input(body, seen)),
        )

    def render(self, answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole response body of a non-streaming request."""
        return response(answer, model, declared_tools(body))

    def events(self, answer: Answer, model: str, body: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a complete event stream; `response.completed` or `.incomplete` comes last."""
        for number_, event in enumerate(events(answer, model, declared_tools(body))):
            yield _chunk(event, number_)

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return an error body for an HTTP status."""
        return openai_error(status, message)

    def overflow(self, prompt_tokens: int, limit: int) -> tuple[int, dict[str, Any]]:
        """Return status and body of "the prompt does not fit", as the harness acts on it."""
        return 400, openai_overflow("input", prompt_tokens, limit)

    def stream_error(self, message: str) -> bytes:
        """Return the chunk that ends a stream whose headers were already sent."""
        return _chunk(failure(message), 0)

    def api_key(self, headers: Mapping[str, str]) -> str:
        """Return the bearer token, or an empty string."""
        return bearer(headers)


def _input(body: Mapping[str, Any], seen: Seen | None) -> list[ChatMessage]:
    given = body.get("input")
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    messages: list[ChatMessage] = []
    for message in each_item(body, "input", _message, seen):
        at = _answer_of(messages, message)
        if at is not None:
            messages[at] = _joined(messages[at], message)
        elif message != _NOTHING:
            messages.append(message)
    return messages


_NOTHING = ChatMessage(role="reasoning")
"""A reasoning item in which nothing can be read."""


def _message(item: Mapping[str, Any], where: str) -> ChatMessage:
    kind = item.get("type", "message")
    if kind == "message":
        return _text_message(item, where)
    if kind == "reasoning":
        reasoning = read_reasoning(item, where)
        return ChatMessage(role="assistant", reasoning=reasoning) if reasoning else _NOTHING
    if kind in _CALLS:
        return ChatMessage(role="assistant", tool_calls=(read_call(item, where),))
    if kind in ("function_call_output", "custom_tool_call_output"):
        return ChatMessage(
            role="tool",
            content=text(item.get("output"), f"{where}.output", _TEXT_KINDS),
            tool_call_id=required(item, "call_id", where),
        )
    raise BadRequest(f"{where}: items of type {quoted(kind)} cannot be read here")


def _text_message(item: Mapping[str, Any], where: str) -> ChatMessage:
    role = required(item, "role", where)
    if role not in _ROLES:
        raise BadRequest(f"{where}.role: {quoted(role)} is none of {', '.join(_ROLES)}")
    if item.get("content") is None:
        raise BadRequest(f"{where}.content: a string or a list of parts is wanted, not null")
    content = text(item["content"], f"{where}.content", _TEXT_KINDS)
    return ChatMessage(role=_ROLES[role], content=content)


def _answer_of(messages: Sequence[ChatMessage], item: ChatMessage) -> int | None:
    """Return which message an item goes on with, if any: results may stand between its calls."""
    if not messages or item.role != "assistant":
        return None
    if _continues(messages[-1], item):
        return len(messages) - 1
    at = next((i for i in reversed(range(len(messages))) if messages[i].role != "tool"), 0)
    calls = messages[at].tool_calls
    if calls and item.tool_calls and of_one_answer(calls[-1].id, item.tool_calls[0].id):
        return at
    return None


def _continues(before: ChatMessage, item: ChatMessage) -> bool:
    """Say whether two items are of one answer: reasoning, then text, then calls."""
    if before.role != "assistant" or item.role != "assistant" or item.reasoning:
        return False
    return bool(item.tool_calls) or not (before.content or before.tool_calls)


def _joined(before: ChatMessage, item: ChatMessage) -> ChatMessage:
    return replace(
        before,
        content=before.content + item.content,
        tool_calls=before.tool_calls + item.tool_calls,
    )


def _chunk(event: dict[str, Any], number_: int) -> bytes:
    data = orjson.dumps({**event, "sequence_number": number_})
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), data)
