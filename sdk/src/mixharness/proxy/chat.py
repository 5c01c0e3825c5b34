"""The wire-free form of a model request and of its answer: what dialects and renderer share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call as shown to a harness, or as a harness sent it back."""

    id: str
    """Minted by the proxy, unique in the whole rollout."""
    name: str
    arguments: str
    """JSON text; in an answer, exactly the sampled characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a request, in any dialect."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """On `tool` messages: the call this is the result of."""
    name: str = ""
    """On `tool` messages: the called tool's, known only once the call's message is at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the policy may call; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A model request without its dialect. A system prompt is the first message."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A sampled assistant message, parsed once from the recorded ids (rule 3)."""

    id: str
    """Minted message id, unique in the rollout."""
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    """`stop` or `length`, as sampled."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
