"""OpenAI Responses: what its tools and items mean, in both directions. Events are elsewhere.

The policy calls every tool with JSON arguments by one flat name. A tool in a namespace is read as
`namespace__name`; a custom tool, whose input is free text, as a function with the argument `input`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_reasoning_item import Content as ReasoningText

from mixharness.proxy.chat import Answer, Tool, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.fields import (
    mappings,
    opaque,
    quoted,
    required,
    string,
    text,
    tool_name,
)

_FREEFORM = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_TAKEN_OUT, _WHOLE = "ctc_", "ctw_"
"""Item ids of custom calls: `input` is the argument of that name, or the arguments as they are."""
_HANDLE = "mh1"
_REASONING_KINDS = ("reasoning_text", "summary_text", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTool:
    """A tool as the policy reads it, and as the client declared it."""

    tool: Tool
    name: str
    namespace: str
    freeform: bool


def declared_tools(body: Mapping[str, Any]) -> dict[str, DeclaredTool]:
    """Return a request's tools by the name the policy calls them with.

    Raises:
        BadRequest: a tool cannot be served, or two have one name.
    """
    found: dict[str, DeclaredTool] = {}
    for where, tool, group in _each_tool(body):
        declared = _declared(tool, where, group)
        name = declared.tool.name
        if name in found:
            raise BadRequest(f"{where}.name: another tool is called {quoted(name)} too")
        found[name] = declared
    return found


def call_item(
    call: ToolCall, tools: Mapping[str, DeclaredTool]
) -> ResponseFunctionToolCall | ResponseCustomToolCall:
    """Return a sampled call as the item its tool wants; of an unknown tool, a function call."""
    declared = tools.get(call.name)
    name = declared.name if declared else call.name
    if declared and declared.freeform:
        taken_out = _free_text(call.arguments)
        item: ResponseFunctionToolCall | ResponseCustomToolCall = ResponseCustomToolCall(
            type="custom_tool_call",
            id=(_WHOLE if taken_out is None else _TAKEN_OUT) + call.id,
            call_id=call.id,
            name=name,
            input=call.arguments if taken_out is None else taken_out,
        )
    else:
        item = ResponseFunctionToolCall(
            type="function_call",
            id=f"fc_{call.id}",
            call_id=call.id,
            name=name,
            arguments=call.arguments,
            status="completed",
        )
    if declared and declared.namespace:
        item.namespace = declared.namespace
    return item


def read_call(item: Mapping[str, Any], where: str) -> ToolCall:
    """Return the call that an item was made from, arguments as JSON text.

    Raises:
        BadRequest: a field is missing.
    """
    if item["type"] == "function_call":
        arguments = required(item, "arguments", where)
    else:
        arguments = required(item, "input", where)
        if not string(item, "id", where).startswith(_WHOLE):
            arguments = orjson.dumps({"input": arguments}).decode()
    return ToolCall(
        id=required(item, "call_id", where),
        name=_flat(string(item, "namespace", where), required(item, "name", where)),
        arguments=arguments,
    )


def message_item(answer: Answer, *, whole: bool) -> ResponseOutputMessage:
    """Return an answer's text as an item."""
    return ResponseOutputMessage(
        type="message",
        id=answer.id,
        role="assistant",
        status="completed" if whole else "incomplete",
        content=[ResponseOutputText(type="output_text", text=answer.text, annotations=[])],
    )


def reasoning_item(answer: Answer) -> ResponseReasoningItem:
    """Return an answer's reasoning as an item: readable, and once more in a handle.

    Programs drop readable reasoning more readily than a handle, which they take for the vendor's.
    """
    return ResponseReasoningItem(
        type="reasoning",
        id=f"rs_{answer.id}",
        summary=[],
        content=[ReasoningText(type="reasoning_text", text=answer.reasoning)],
        encrypted_content=_seal(answer.reasoning),
        status="completed",
    )


def read_reasoning(item: Mapping[str, Any], where: str) -> str:
    """Return the reasoning of an item: from the handle, else what can be read in it.

    A handle that is not this proxy's is passed over: its reasoning was no policy's of ours.

    Raises:
        BadRequest: a field is malformed.
    """
    found = _unseal(string(item, "encrypted_content", where))
    content = text(item.get("content"), f"{where}.content", _REASONING_KINDS)
    summary = text(item.get("summary"), f"{where}.summary", _REASONING_KINDS)
    return content or summary if found is None else found


def _each_tool(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (path, tool, its namespace), the namespace empty for a tool outside of one."""
    for where, tool in mappings(body, "tools"):
        if tool.get("type") == "namespace":
            tool_name(tool, where)
            yield from ((at, inner, tool) for at, inner in mappings(tool, "tools", where))
        else:
            yield where, tool, {}


def _declared(tool: Mapping[str, Any], where: str, group: Mapping[str, Any]) -> DeclaredTool:
    kind, name = tool.get("type"), ""
    if kind not in ("function", "custom"):
        raise BadRequest(f"{where}: no server runs tools of type {quoted(kind)} here")
    name, namespace = tool_name(tool, where), string(group, "name")
    described = [string(group, "description", where), string(tool, "description", where)]
    if kind == "custom":
        described.append(_grammar(tool, where))
        parameters: dict[str, Any] = _FREEFORM
    else:
        parameters = opaque(tool.get("parameters"), f"{where}.parameters")
    return DeclaredTool(
        tool=Tool(
            name=_flat(namespace, name),
            description="\n\n".join(part for part in described if part),
            parameters=parameters,
        ),
        name=name,
        namespace=namespace,
        freeform=kind == "custom",
    )


def _grammar(tool: Mapping[str, Any], where: str) -> str:
    """Return what a custom tool says of its input's form. Nothing here enforces it."""
    form, at = opaque(tool.get("format"), f"{where}.format"), f"{where}.format"
    if form.get("type") != "grammar":
        return ""
    syntax, definition = required(form, "syntax", at), required(form, "definition", at)
    return f"The input follows this {syntax} grammar:\n{definition}"


def _flat(namespace: str, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _free_text(arguments: str) -> str | None:
    """Return the argument `input` when it is the only one and text."""
    value = orjson.loads(arguments)
    only = isinstance(value, dict) and list(value) == ["input"]
    return value["input"] if only and isinstance(value["input"], str) else None


def _seal(reasoning: str) -> str:
    data = reasoning.encode()
    return f"{_HANDLE}.{xxhash.xxh3_64_hexdigest(data)}.{base64.b64encode(data).decode()}"


def _unseal(handle: str) -> str | None:
    """Return the reasoning in a handle, or None when it is damaged or not ours."""
    mark, _, rest = handle.partition(".")
    digest, _, encoded = rest.partition(".")
    if mark != _HANDLE:
        return None
    try:
        data = base64.b64decode(encoded, validate=True)
        return data.decode() if xxhash.xxh3_64_hexdigest(data) == digest else None
    except (binascii.Error, ValueError):
        return None
