"""The wire-free form of a model request and of its answer: what dialects and renderer share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MINTED = re.compile(r"call(\d+)x\d+")


def mint_call_id(answer: int, number: int) -> str:
    """Return the id of one of an answer's tool calls.

    It is short and has letters and digits only: programs strip the rest and cut the end.
    """
    return f"call{answer}x{number}"


def of_one_answer(one: str, other: str) -> bool:
    """Say whether two minted ids are of tool calls in the same answer."""
    first, second = (_MINTED.fullmatch(call_id) for call_id in (one, other))
    return bool(first and second and first[1] == second[1])


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
    reasoning_tokens: int = 0
    """Those of the completion's that the reasoning takes."""
