"""OpenAI Chat Completions. Text and function tools only; other kinds of content are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion_usage import CompletionTokensDetails

from mixharness.proxy.chat import Answer, ChatMessage, ChatRequest, Tool, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.fields import (
    bearer,
    each_item,
    flag,
    mapping,
    mappings,
    number,
    opaque,
    quoted,
    refuse,
    required,
    string,
    text,
    tool_name,
)
from mixharness.proxy.dialects.seen import Seen

_ROLES = {"system": "system", "developer": "system", "user": "user"}
_REFUSED = {
    "functions": "send them as tools",
    "stop": "an answer cannot be ended at a string",
}


class OpenAIChat:
    """The dialect of `POST /v1/chat/completions`."""

    name: ClassVar[str] = "openai_chat"
    path: ClassVar[str] = "/v1/chat/completions"
    keep_alive: ClassVar[bytes] = b": keep-alive\n\n"
    end_status: ClassVar[int] = 400

    def parse(self, body: Mapping[str, Any], seen: Seen | None = None) -> ChatRequest:
        """Read a request body.

        Raises:
            BadRequest: with a sentence that says what is wrong.
        """
        refuse(body, _REFUSED)
        if body.get("n") not in (None, 1):
            raise BadRequest("n: only one choice per request is sampled")
        opaque(body.get("stream_options"), "stream_options")
        new, old = number(body, "max_completion_tokens"), number(body, "max_tokens")
        return ChatRequest(
            tools=tuple(_tool(t, where) for where, t in mappings(body, "tools")),
            max_tokens=new or old,
            stream=flag(body, "stream"),
            model=string(body, "model"),
            messages=tuple(each_item(body, "messages", _message, seen)),
        )

    def render(self, answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole response body of a non-streaming request."""
        choice = {"index": 0, "message": _shown(answer), "finish_reason": _finish_reason(answer)}
        completion = ChatCompletion.model_validate(
            {
                "id": answer.id,
                "object": "chat.completion",
                "created": 0,
                "model": model,
                "choices": [choice],
                "usage": _usage(answer),
            }
        )
        return completion.model_dump(mode="json", exclude_unset=True)

    def events(self, answer: Answer, model: str, body: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a complete event stream; usage comes in the last chunk when it was asked for."""

        def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
            event = ChatCompletionChunk.model_validate(
                {
                    "id": answer.id,
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": model,
                    "choices": choices,
                    **more,
                }
            )
            return b"data: %s\n\n" % orjson.dumps(event.model_dump(mode="json", exclude_unset=True))

        for delta in _deltas(answer):
            yield chunk([{"index": 0, "delta": delta, "finish_reason": None}])
        yield chunk([{"index": 0, "delta": {}, "finish_reason": _finish_reason(answer)}])
        if (body.get("stream_options") or {}).get("include_usage"):
            yield chunk([], usage=_usage(answer))
        yield b"data: [DONE]\n\n"

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return an error body for an HTTP status."""
        return openai_error(status, message)

    def overflow(self, prompt_tokens: int, limit: int) -> tuple[int, dict[str, Any]]:
        """Return status and body of "the prompt does not fit", as the harness acts on it."""
        return 400, openai_overflow("messages", prompt_tokens, limit)

    def stream_error(self, message: str) -> bytes:
        """Return the chunk that ends a stream whose headers were already sent."""
        return b"data: %s\n\n" % orjson.dumps(self.error(500, message))

    def api_key(self, headers: Mapping[str, str]) -> str:
        """Return the bearer token, or an empty string."""
        return bearer(headers)


def openai_error(status: int, message: str) -> dict[str, Any]:
    """Return the error body that all of this vendor's dialects share."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def openai_overflow(param: str, prompt_tokens: int, limit: int) -> dict[str, Any]:
    """Return the body of "the prompt does not fit", as programs recognise it."""
    body = openai_error(
        400,
        f"This model's maximum context length is {limit} tokens. However, your {param} "
        f"resulted in {prompt_tokens} tokens.",
    )
    body["error"] |= {"param": param, "code": "context_length_exceeded"}
    return body


def _message(message: Mapping[str, Any], where: str) -> ChatMessage:
    role = required(message, "role", where)
    content = text(message.get("content"), f"{where}.content")
    if role in _ROLES:
        if message.get("content") is None:
            raise BadRequest(f"{where}.content: a string or a list of parts is wanted, not null")
        return ChatMessage(role=_ROLES[role], content=content)
    if role == "tool":
        call_id = required(message, "tool_call_id", where)
        return ChatMessage(role="tool", content=content, tool_call_id=call_id)
    if role == "assistant":
        reasoning = string(message, "reasoning_content", where)
        return ChatMessage(
            role="assistant",
            content=content,
            reasoning=reasoning or string(message, "reasoning", where),
            tool_calls=tuple(_tool_call(c, at) for at, c in mappings(message, "tool_calls", where)),
        )
    raise BadRequest(
        f"{where}.role: {quoted(role)} is none of system, developer, user, assistant, tool"
    )


def _tool_call(call: Mapping[str, Any], where: str) -> ToolCall:
    function = mapping(call.get("function"), f"{where}.function")
    return ToolCall(
        id=required(call, "id", where),
        name=required(function, "name", f"{where}.function"),
        arguments=string(function, "arguments", f"{where}.function"),
    )


def _tool(tool: Mapping[str, Any], where: str) -> Tool:
    if tool.get("type", "function") != "function":
        kind = quoted(tool["type"])
        raise BadRequest(f"{where}: functions are served here, no tools of type {kind}")
    function, at = mapping(tool.get("function"), f"{where}.function"), f"{where}.function"
    return Tool(
        name=tool_name(function, at),
        description=string(function, "description", at),
        parameters=opaque(function.get("parameters"), f"{at}.parameters"),
    )


def _shown(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [_function_call(call) for call in answer.tool_calls]
    return message


def _deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if answer.reasoning:
        yield {"reasoning_content": answer.reasoning}
    if answer.text:
        yield {"content": answer.text}
    for index, call in enumerate(answer.tool_calls):
        yield {"tool_calls": [{"index": index, **_function_call(call)}]}


def _function_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _finish_reason(answer: Answer) -> str:
    return "tool_calls" if answer.tool_calls else answer.finish_reason


def _usage(answer: Answer) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=answer.reasoning_tokens),
        total_tokens=answer.prompt_tokens + answer.completion_tokens,
    )
