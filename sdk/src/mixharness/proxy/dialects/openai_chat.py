"""OpenAI Chat Completions. Text and function tools only; other kinds of content are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mixharness.proxy.chat import Answer, ChatMessage, ChatRequest, Tool, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.fields import mapping, mappings, number, text

_ROLES = {"system": "system", "developer": "system", "user": "user"}


class OpenAIChat:
    """The dialect of `POST /v1/chat/completions`."""

    name: ClassVar[str] = "openai_chat"
    path: ClassVar[str] = "/v1/chat/completions"
    keep_alive: ClassVar[bytes] = b": keep-alive\n\n"

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        """Read a request body.

        Raises:
            BadRequest: with a sentence that says what is wrong.
        """
        if body.get("n") not in (None, 1):
            raise BadRequest("n: only one choice per request is sampled")
        limit = "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens"
        return ChatRequest(
            messages=tuple(_message(m, where) for where, m in mappings(body, "messages")),
            tools=tuple(_tool(t, where) for where, t in mappings(body, "tools")),
            max_tokens=number(body, limit),
            stream=body.get("stream") is True,
            model=str(body.get("model", "")),
        )

    def render(self, answer: Answer, model: str) -> dict[str, Any]:
        """Return the whole response body of a non-streaming request."""
        choice = {"index": 0, "message": _shown(answer), "finish_reason": _finish_reason(answer)}
        body = ChatCompletion.model_validate(
            {
                "id": answer.id,
                "object": "chat.completion",
                "created": 0,
                "model": model,
                "choices": [choice],
                "usage": _usage(answer),
            }
        )
        return body.model_dump(mode="json", exclude_unset=True)

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
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}

    def overflow(self, prompt_tokens: int, limit: int) -> tuple[int, dict[str, Any]]:
        """Return status and body of "the prompt does not fit", as the harness acts on it."""
        body = self.error(
            400,
            f"This model's maximum context length is {limit} tokens. However, your messages "
            f"resulted in {prompt_tokens} tokens.",
        )
        body["error"] |= {"param": "messages", "code": "context_length_exceeded"}
        return 400, body

    def stream_error(self, message: str) -> bytes:
        """Return the chunk that ends a stream whose headers were already sent."""
        return b"data: %s\n\n" % orjson.dumps(self.error(500, message))

    def api_key(self, headers: Mapping[str, str]) -> str:
        """Return the bearer token, or an empty string."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""


def _message(message: Mapping[str, Any], where: str) -> ChatMessage:
    role = message.get("role")
    content = text(message.get("content"), f"{where}.content")
    if role in _ROLES:
        return ChatMessage(role=_ROLES[role], content=content)
    if role == "tool":
        call_id = str(message.get("tool_call_id", ""))
        return ChatMessage(role="tool", content=content, tool_call_id=call_id)
    if role == "assistant":
        return ChatMessage(
            role="assistant",
            content=content,
            reasoning=str(message.get("reasoning_content") or message.get("reasoning") or ""),
            tool_calls=tuple(_tool_call(c, at) for at, c in mappings(message, "tool_calls", where)),
        )
    raise BadRequest(f"{where}.role: {role!r} is none of system, developer, user, assistant, tool")


def _tool_call(call: Mapping[str, Any], where: str) -> ToolCall:
    function = mapping(call.get("function"), f"{where}.function")
    return ToolCall(
        id=str(call.get("id", "")),
        name=str(function.get("name", "")),
        arguments=str(function.get("arguments", "")),
    )


def _tool(tool: Mapping[str, Any], where: str) -> Tool:
    function = mapping(tool.get("function"), f"{where}.function")
    if not isinstance(function.get("name"), str):
        raise BadRequest(f"{where}.function.name: a string is wanted")
    return Tool(
        name=function["name"],
        description=str(function.get("description", "")),
        parameters=mapping(function.get("parameters", {}), f"{where}.function.parameters"),
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
        total_tokens=answer.prompt_tokens + answer.completion_tokens,
    )
