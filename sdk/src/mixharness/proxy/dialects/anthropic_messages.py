"""Anthropic Messages. Text, thinking and client tools only; other blocks are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson

from mixharness.proxy.chat import Answer, ChatMessage, ChatRequest, Tool, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.fields import (
    bearer,
    each_item,
    flag,
    mappings,
    number,
    opaque,
    quoted,
    refuse,
    required,
    string,
    text,
    text_part,
    tool_name,
)
from mixharness.proxy.dialects.seen import Seen

_REFUSED = {
    "stop_sequences": "an answer cannot be ended at a string",
    "mcp_servers": "no server runs tools here",
}


class AnthropicMessages:
    """The dialect of `POST /v1/messages`."""

    name: ClassVar[str] = "anthropic_messages"
    path: ClassVar[str] = "/v1/messages"
    keep_alive: ClassVar[bytes] = b'event: ping\ndata: {"type": "ping"}\n\n'
    end_status: ClassVar[int] = 403  # at 400 Claude Code asks again in two other ways

    def parse(self, body: Mapping[str, Any], seen: Seen | None = None) -> ChatRequest:
        """Read a request body.

        Raises:
            BadRequest: with a sentence that says what is wrong.
        """
        refuse(body, _REFUSED)
        return ChatRequest(
            tools=tuple(_tool(t, where) for where, t in mappings(body, "tools")),
            max_tokens=number(body, "max_tokens"),
            stream=flag(body, "stream"),
            model=string(body, "model"),
            messages=tuple(_conversation(body, seen)),
        )

    def render(self, answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole response body of a non-streaming request."""
        content = [_block(kind, value) for kind, value in _blocks(answer)]
        return _message(answer, model, content, stop_reason=_stop_reason(answer))

    def events(self, answer: Answer, model: str, body: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a complete, well-formed event stream; `message_stop` comes last."""
        start = _message(answer, model, [], stop_reason=None)
        start["usage"]["output_tokens"] = 0
        yield _event("message_start", message=start)
        for index, (kind, value) in enumerate(_blocks(answer)):
            yield _event("content_block_start", index=index, content_block=_empty(kind, value))
            for delta in _deltas(kind, value):
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event(
            "message_delta",
            delta={"stop_reason": _stop_reason(answer), "stop_sequence": None},
            usage={"output_tokens": answer.completion_tokens},
        )
        yield _event("message_stop")

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return an error body for an HTTP status."""
        kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def overflow(self, prompt_tokens: int, limit: int) -> tuple[int, dict[str, Any]]:
        """Return status and body of "the prompt does not fit", as the harness acts on it."""
        return 400, self.error(400, f"prompt is too long: {prompt_tokens} tokens > {limit} maximum")

    def stream_error(self, message: str) -> bytes:
        """Return the chunk that ends a stream whose headers were already sent."""
        return _event("error", error=self.error(500, message)["error"])

    def api_key(self, headers: Mapping[str, str]) -> str:
        """Return the key from `x-api-key` or a bearer token, or an empty string."""
        return headers.get("x-api-key") or bearer(headers)


# Not read when it comes back; but OpenClaw resends reasoning without one as text.
_SIGNATURE = "bWl4aGFybmVzcw=="
_ERRORS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def _conversation(body: Mapping[str, Any], seen: Seen | None) -> Iterator[ChatMessage]:
    system = text(body.get("system"), "system")
    if system:
        yield ChatMessage(role="system", content=system)
    for messages in each_item(body, "messages", _messages, seen):
        yield from messages


def _messages(message: Mapping[str, Any], where: str) -> list[ChatMessage]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise BadRequest(f"{where}.role: {quoted(role)} is none of user, assistant, system")
    if content is None:
        raise BadRequest(f"{where}.content: a string or a list of blocks is wanted, not null")
    if isinstance(content, str):
        return [ChatMessage(role=role, content=content)]
    blocks = list(mappings(message, "content", where))
    if role == "assistant":
        return [_assistant(blocks)]
    return list(_user(role, blocks))


def _assistant(blocks: list[tuple[str, dict[str, Any]]]) -> ChatMessage:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[ToolCall] = []
    for where, block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(text_part(block, where))
        elif kind == "thinking":
            thinking.append(required(block, "thinking", where))
        elif kind == "tool_use":
            calls.append(_tool_use(block, where))
        else:
            raise BadRequest(f"{where}: the policy can have said no block of type {quoted(kind)}")
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        reasoning="".join(thinking),
        tool_calls=tuple(calls),
    )


def _user(role: str, blocks: list[tuple[str, dict[str, Any]]]) -> Iterator[ChatMessage]:
    """Yield tool results and the text between them, in the order they came."""
    waiting: list[str] = []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            waiting.append(text_part(block, where))
            continue
        if waiting:
            yield ChatMessage(role=role, content="\n\n".join(waiting))
            waiting = []
        result = text(block.get("content"), f"{where}.content")
        yield ChatMessage(
            role="tool",
            content=f"Error: {result}" if block.get("is_error") is True else result,
            tool_call_id=required(block, "tool_use_id", where),
        )
    if waiting or not blocks:
        yield ChatMessage(role=role, content="\n\n".join(waiting))


def _tool_use(block: Mapping[str, Any], where: str) -> ToolCall:
    return ToolCall(
        id=required(block, "id", where),
        name=required(block, "name", where),
        arguments=orjson.dumps(opaque(block.get("input"), f"{where}.input")).decode(),
    )


def _tool(tool: Mapping[str, Any], where: str) -> Tool:
    if tool.get("type") not in (None, "custom"):
        kind = quoted(tool["type"])
        raise BadRequest(f"{where}: no server runs tools of type {kind} here")
    return Tool(
        name=tool_name(tool, where),
        description=string(tool, "description", where),
        parameters=opaque(tool.get("input_schema"), f"{where}.input_schema"),
    )


def _blocks(answer: Answer) -> Iterator[tuple[str, str | ToolCall]]:
    if answer.reasoning:
        yield "thinking", answer.reasoning
    if answer.text:
        yield "text", answer.text
    for call in answer.tool_calls:
        yield "tool_use", call


def _empty(kind: str, value: str | ToolCall) -> dict[str, Any]:
    if isinstance(value, ToolCall):
        return {"type": "tool_use", "id": value.id, "name": value.name, "input": {}}
    signature = {"signature": ""} if kind == "thinking" else {}
    return {"type": kind, kind: "", **signature}


def _block(kind: str, value: str | ToolCall) -> dict[str, Any]:
    if isinstance(value, ToolCall):
        return _empty(kind, value) | {"input": orjson.loads(value.arguments)}
    signature = {"signature": _SIGNATURE} if kind == "thinking" else {}
    return _empty(kind, value) | {kind: value} | signature


def _deltas(kind: str, value: str | ToolCall) -> Iterator[dict[str, Any]]:
    if isinstance(value, ToolCall):
        yield {"type": "input_json_delta", "partial_json": value.arguments}
        return
    yield {"type": f"{kind}_delta", kind: value}
    if kind == "thinking":
        yield {"type": "signature_delta", "signature": _SIGNATURE}


def _message(
    answer: Answer, model: str, content: list[dict[str, Any]], *, stop_reason: str | None
) -> dict[str, Any]:
    # A plain object: importing the vendor's types takes a second, and its client tests this one.
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "output_tokens": answer.completion_tokens,
        },
    }


def _stop_reason(answer: Answer) -> str:
    if answer.tool_calls:
        return "tool_use"
    return "max_tokens" if answer.finish_reason == "length" else "end_turn"


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
