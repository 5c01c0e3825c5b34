"""How a template wants one message and one tool spelled. Which messages it takes is rules.py's."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from mixharness.proxy.chat import ChatMessage, Tool, ToolCall

_SHORT_ID = 9
"""Characters of a tool-call id that Mistral's templates insist on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The spelling of messages for one template; templates differ in what they choke on."""

    text_arguments: bool = True
    """Tool arguments are JSON text, exact to the character; otherwise an object."""
    null_content: bool = False
    """A turn that only calls tools has no content, instead of an empty one."""
    short_ids: bool = False
    reasoning_key: str = "reasoning_content"

    def message(self, message: ChatMessage) -> dict[str, Any]:
        """Return a message as templates know it."""
        out: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            out[self.reasoning_key] = message.reasoning
        if message.tool_calls:
            out["tool_calls"] = [self._call(call) for call in message.tool_calls]
            if self.null_content and not message.content:
                out["content"] = None
        if message.role == "tool":
            out["tool_call_id"] = self._id(message.tool_call_id)
            if message.name:
                out["name"] = message.name
        return out

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = call.arguments if self.text_arguments else _object(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        return {"id": self._id(call.id), "type": "function", "function": function}

    def _id(self, call_id: str) -> str:
        if not self.short_ids or re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
            return call_id
        return xxhash.xxh3_64_hexdigest(call_id.encode("utf-8", "surrogatepass"))[:_SHORT_ID]


_CALL = ToolCall(id="call10x0", name="lookfunc", arguments='{"spot": "hereword"}')
_SAMPLE = (
    ChatMessage(role="user", content="oneword"),
    ChatMessage(role="assistant", tool_calls=(_CALL,)),
    ChatMessage(role="tool", tool_call_id=_CALL.id, name=_CALL.name, content="seenword"),
)
_WORDS = ("lookfunc", "spot", "hereword", "seenword")


def find_shape(text: Callable[[Sequence[dict[str, Any]]], str]) -> Shape:
    """Return the first shape in which a template shows a tool call whole, else the plain one.

    Args:
        text: renders messages; may raise anything.
    """
    for short, null, as_text in itertools.product((False, True), (False, True), (True, False)):
        shape = Shape(text_arguments=as_text, null_content=null, short_ids=short)
        try:
            rendered = text([shape.message(message) for message in _SAMPLE])
        except Exception:  # a template raises what it likes
            continue
        places = [rendered.find(word) for word in _WORDS]
        if min(places) >= 0 and places == sorted(places) and '\\"spot' not in rendered:
            return shape
    return Shape()


def tool_list(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Return tools in the form chat templates were trained on; None when there are none."""
    return [tool_object(tool) for tool in tools] or None


def tool_object(tool: Tool) -> dict[str, Any]:
    """Return one tool as OpenAI's API spells it."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _object(arguments: str) -> Any:
    """Return arguments as an object; what is none is kept under a name of its own."""
    try:
        value = json.loads(arguments or "{}")
    except json.JSONDecodeError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}
