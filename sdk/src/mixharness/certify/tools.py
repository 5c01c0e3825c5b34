"""Finds the tools a prompt offers and calls them, whatever they are called. Knows no harness.

Tools are read from the prompt's text, as the policy reads them: a template must list them as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixharness.certify.situations import Call
from mixharness.proxy.chat import ToolCall

_DECODER = json.JSONDecoder()
_SHELL = ("bash", "exec_command", "run_shell_command", "shell", "exec")
_WRITE = ("write", "write_file", "create_file")
_AGENT = ("agent", "task", "spawn_agent")
_COMMAND = ("command", "cmd", "script")
_PATH = ("file_path", "path", "filename")
_CONTENT = ("content", "text", "file_text")
_MESSAGE = ("prompt", "message", "task")
_FILE = "b.txt"
_FILLERS = {"string": "certify", "boolean": False, "integer": 1, "number": 1, "array": []}


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool in a prompt."""

    name: str
    schema: Mapping[str, Any]

    @property
    def properties(self) -> Mapping[str, Any]:
        """Return the arguments it takes, by name."""
        found = self.schema.get("properties")
        return found if isinstance(found, dict) else {}

    def key(self, names: Sequence[str]) -> str | None:
        """Return the first argument that has one of these names."""
        return next((name for name in names if name in self.properties), None)


def offered_tools(prompt: str) -> list[Offered]:
    """Return the tools that a prompt lists, in its order."""
    return [
        Offered(tool["name"], tool.get("parameters") or {})
        for value in _objects(prompt)
        for tool in (value.get("function", value),)
        if isinstance(tool, dict) and isinstance(tool.get("name"), str) and "parameters" in tool
    ]


def tool_call(call: Call, tools: Sequence[Offered]) -> ToolCall:
    """Return a call as the policy samples it.

    Raises:
        LookupError: no tool that is offered can do it.
    """
    if call.agent:
        return _filled(_find(tools, "sub-agent", _AGENT, _MESSAGE), call.agent, _MESSAGE)
    writers = (tool for tool in tools if _fits(tool, _WRITE, _CONTENT) and tool.key(_PATH))
    writer = next(writers, None) if call.write else None
    if writer is not None:
        path = {str(writer.key(_PATH)): _FILE}
        return _filled(writer, f"{call.write}\n", _CONTENT, path)
    tool = _find(tools, "shell", _SHELL, _COMMAND)
    if call.shell_json:
        return ToolCall(id="", name=tool.name, arguments=_spelled(call.shell_json, tool))
    return _filled(tool, call.shell or f"echo {call.write} > {_FILE}", _COMMAND)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the outermost JSON objects in a text."""
    at = text.find("{")
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            end = at + 1
        else:
            yield value
        at = text.find("{", end)


def _fits(tool: Offered, names: Sequence[str], keys: Sequence[str]) -> bool:
    own = re.split(r"\.|__", tool.name)[-1].lower()  # a name may be qualified by its namespace
    return own in names and tool.key(keys) is not None


def _find(
    tools: Sequence[Offered], kind: str, names: Sequence[str], keys: Sequence[str]
) -> Offered:
    for tool in tools:
        if _fits(tool, names, keys):
            return tool
    listed = ", ".join(tool.name for tool in tools) or "none"
    raise LookupError(f"the script needs a {kind} tool; the prompt offers: {listed}")


def _filled(
    tool: Offered, value: str, keys: Sequence[str], more: Mapping[str, str] | None = None
) -> ToolCall:
    """Give a tool its main argument, and something for every other one it insists on."""
    arguments: dict[str, Any] = {str(tool.key(keys)): value, **(more or {})}
    left = [name for name in tool.schema.get("required", ()) if name not in arguments]
    arguments |= {name: _filler(tool.properties.get(name, {})) for name in left}
    return ToolCall(id="", name=tool.name, arguments=json.dumps(arguments))


def _filler(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    return _FILLERS.get(str(schema.get("type")), {})


def _spelled(template: str, tool: Offered) -> str:
    numeric = (
        name
        for name, schema in tool.properties.items()
        if schema.get("type") in ("number", "integer")
    )
    number = next(numeric, None)
    text = template.replace("@number@", "" if number is None else f'"{number}" : 5.0e3 ,')
    return text.replace("@command@", str(tool.key(_COMMAND)))
