"""OpenAI Responses: an answer as a response object and as the events of a stream.

What the items mean is responses_items.py's; requests are read in openai_responses.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from openai.types.responses import Response, ResponseError, ResponseOutputItem, ResponseUsage
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from mixharness.proxy.chat import Answer
from mixharness.proxy.dialects.responses_items import (
    DeclaredTool,
    call_item,
    message_item,
    reasoning_item,
)

Event = dict[str, Any]
_STEMS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}


def response(answer: Answer, model: str, tools: Mapping[str, DeclaredTool]) -> Event:
    """Return the whole response object of an answer."""
    whole = _whole(answer)
    return _dump(
        _response(
            answer.id,
            model,
            "completed" if whole else "incomplete",
            incomplete_details=None if whole else IncompleteDetails(reason="max_output_tokens"),
            output=_items(answer, tools),
            usage=_usage(answer),
        )
    )


def events(answer: Answer, model: str, tools: Mapping[str, DeclaredTool]) -> Iterator[Event]:
    """Yield the events of an answer; the last holds the whole response."""
    opened = _dump(_response(answer.id, model, "in_progress"))
    yield _event("response.created", response=opened)
    yield _event("response.in_progress", response=opened)
    complete = response(answer, model, tools)
    for index, item in enumerate(complete["output"]):
        yield _event("response.output_item.added", output_index=index, item=_opened(item))
        yield from _filled(index, item)
        yield _event("response.output_item.done", output_index=index, item=item)
    yield _event(f"response.{complete['status']}", response=complete)


def failure(message: str) -> Event:
    """Return the event that ends a stream without an answer."""
    error = ResponseError(code="server_error", message=message)
    return _event("response.failed", response=_dump(_response("none", "", "failed", error=error)))


def _response(
    answer_id: str,
    model: str,
    status: Literal["completed", "incomplete", "in_progress", "failed"],
    **fields: Any,
) -> Response:
    # Tools are not repeated: no program reads them here, and they are most of a small request.
    empty: dict[str, Any] = {"output": [], "error": None, "incomplete_details": None, "usage": None}
    return Response(
        id=f"resp_{answer_id}",
        object="response",
        created_at=0,
        model=model,
        status=status,
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        **(empty | fields),
    )


def _items(answer: Answer, tools: Mapping[str, DeclaredTool]) -> list[ResponseOutputItem]:
    items: list[ResponseOutputItem] = []
    if answer.reasoning:
        items.append(reasoning_item(answer))
    if answer.text:
        items.append(message_item(answer, whole=_whole(answer)))
    items += [call_item(call, tools) for call in answer.tool_calls]
    return items


def _opened(item: Event) -> Event:
    """Return an item as it is announced: without what the events after it bring."""
    empty: Event = {"arguments": "", "input": "", "content": [], "status": "in_progress"}
    return {key: empty.get(key, value) for key, value in item.items() if key != "encrypted_content"}


def _filled(index: int, item: Event) -> Iterator[Event]:
    stem = _STEMS[item["type"]]
    at = {"item_id": item["id"], "output_index": index}
    if "content" not in item:
        key = "input" if "input" in item else "arguments"
        yield _event(f"{stem}.delta", **at, delta=item[key])
        yield _event(f"{stem}.done", **at, **{key: item[key]})
        return
    (part,) = item["content"]
    at["content_index"] = 0
    more: Event = {"logprobs": []} if item["type"] == "message" else {}
    yield _event("response.content_part.added", **at, part=part | {"text": ""})
    yield _event(f"{stem}.delta", **at, **more, delta=part["text"])
    yield _event(f"{stem}.done", **at, **more, text=part["text"])
    yield _event("response.content_part.done", **at, part=part)


def _whole(answer: Answer) -> bool:
    return bool(answer.tool_calls) or answer.finish_reason != "length"


def _usage(answer: Answer) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=answer.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
        output_tokens=answer.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=answer.reasoning_tokens),
        total_tokens=answer.prompt_tokens + answer.completion_tokens,
    )


def _dump(value: Response) -> Event:
    return value.model_dump(mode="json", exclude_unset=True, by_alias=True)


def _event(kind: str, **fields: Any) -> Event:
    return {"type": kind, **fields}
