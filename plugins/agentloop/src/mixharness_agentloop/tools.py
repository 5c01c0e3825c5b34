"""The four tools and how a call is read. Everything they touch is inside the sandbox."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mixharness import Sandbox

Arguments = Mapping[str, str]


class ToolError(Exception):
    """A call that could be understood but not done; the model is told."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is shown, and whether its call named a tool with valid arguments."""

    text: str
    understood: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool whose parameters are all strings and all required."""

    name: str
    description: str
    parameters: tuple[str, ...]
    run: Callable[[Toolbox, Arguments], Awaitable[str]]

    def schema(self) -> dict[str, Any]:
        """Return the tool as Chat Completions wants it; short, because the model reads it."""
        parameters = {
            "type": "object",
            "properties": {name: {"type": "string"} for name in self.parameters},
            "required": list(self.parameters),
        }
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}


class Toolbox:
    """Runs tool calls of one rollout in its sandbox."""

    def __init__(self, sandbox: Sandbox, max_output_chars: int, tool_timeout_s: float) -> None:
        self._sandbox = sandbox
        self._max_output_chars = max_output_chars
        self._tool_timeout_s = tool_timeout_s

    async def call(self, offered: Collection[str], function: Mapping[str, Any]) -> ToolResult:
        """Run one call as the model wrote it; whatever is wrong with it becomes its result."""
        name = str(function.get("name"))
        if name not in offered:
            return ToolResult(f"error: no tool {name!r}; use {', '.join(offered)}", False)
        tool = TOOLS[name]
        try:
            arguments = _arguments(tool, function.get("arguments"))
        except ToolError as exc:
            return ToolResult(f"error: {exc}", False)
        try:
            text = await tool.run(self, arguments)
        except (ToolError, OSError) as exc:
            # The folder's name differs from rollout to rollout; what the model reads should not.
            text = f"error: {exc}".replace(f"{self._sandbox.workspace}/", "")
        return ToolResult(self._shortened(text), True)

    async def bash(self, arguments: Arguments) -> str:
        """Run a command and return its outputs and what was unusual."""
        done = await self._sandbox.exec(
            ["bash", "-c", arguments["command"]], timeout_s=self._tool_timeout_s
        )
        text = (done.stdout + done.stderr).decode("utf-8", errors="replace").rstrip("\n")
        lines = [text] if text else []
        if done.timed_out:
            lines.append(f"[timed out after {self._tool_timeout_s:g} s]")
        elif done.exit_code:
            lines.append(f"[exit code {done.exit_code}]")
        return "\n".join(lines) or "(no output)"

    async def read(self, arguments: Arguments) -> str:
        """Return a file's text."""
        data = await self._sandbox.read(arguments["path"])
        return data.decode("utf-8", errors="replace") or "(empty file)"

    async def write(self, arguments: Arguments) -> str:
        """Write a whole file."""
        await self._sandbox.write(arguments["path"], arguments["content"].encode())
        return f"wrote {arguments['path']}"

    async def edit(self, arguments: Arguments) -> str:
        """Replace the only place where `old` stands by `new`."""
        path, old = arguments["path"], arguments["old"]
        try:
            text = (await self._sandbox.read(path)).decode()
        except UnicodeDecodeError as exc:
            raise ToolError(f"{path} is not a text file") from exc
        found = text.count(old) if old else 0
        if found != 1:
            raise ToolError(f"old must occur once in {path}, not {found} times")
        await self._sandbox.write(path, text.replace(old, arguments["new"]).encode())
        return f"edited {path}"

    def _shortened(self, text: str) -> str:
        excess = len(text) - self._max_output_chars
        if excess <= 0:
            return text
        half = self._max_output_chars // 2
        return f"{text[:half]}\n[{excess} characters left out]\n{text[-half:]}"


def _arguments(tool: Tool, raw: Any) -> Arguments:
    """Read a call's arguments.

    Raises:
        ToolError: they are no JSON object of exactly the tool's parameters, all strings.
    """
    try:
        arguments = json.loads(raw)
    except (TypeError, ValueError) as exc:
        raise ToolError(f"the arguments of {tool.name} are not valid JSON") from exc
    if not isinstance(arguments, dict) or set(arguments) != set(tool.parameters):
        raise ToolError(f"{tool.name} takes {', '.join(tool.parameters)}")
    if not all(_is_text(value) for value in arguments.values()):
        raise ToolError(f"the arguments of {tool.name} must be text")
    return arguments


def _is_text(value: object) -> bool:
    """Say whether a value can be handed to a program: no NUL, no half surrogate pair."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_ALL = (
    Tool("bash", "Run a shell command.", ("command",), Toolbox.bash),
    Tool("read", "Read a file.", ("path",), Toolbox.read),
    Tool("write", "Write a file.", ("path", "content"), Toolbox.write),
    Tool("edit", "Replace text that occurs once.", ("path", "old", "new"), Toolbox.edit),
)
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _ALL}
