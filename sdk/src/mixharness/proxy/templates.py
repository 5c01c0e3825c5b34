"""Chat templates this proxy can extend, and the probe conversations each has to pass.

A template belongs here once its deltas are proven equal to whole renderings; the renderer is
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from renderers import Qwen3RendererConfig

from mixharness.proxy.chat import ChatMessage, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class Template:
    """One chat template: its configuration in `renderers`, and what the tokenizer must have."""

    config: Callable[[], Qwen3RendererConfig]
    tokens: tuple[str, ...]
    """Strings that must each be one token."""


QWEN3_TURN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Markers of turns and texts: special tokens."""
QWEN3_TAG_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Markers inside a turn: single tokens, but not special ones."""

TEMPLATES = {
    "qwen3": Template(
        # Named outright: a self-trained tokenizer would otherwise get a renderer that cannot extend
        config=lambda: Qwen3RendererConfig(thinking_retention="all"),
        tokens=QWEN3_TURN_TOKENS + QWEN3_TAG_TOKENS,
    ),
}


@dataclass(frozen=True, slots=True)
class Probe:
    """A turn and what comes after it: extending must give what rendering it whole gives."""

    name: str
    turn: ChatMessage
    after: tuple[ChatMessage, ...]


PROBE_TOOLS = (Tool(name="run", description="Run it.", parameters={"type": "object"}),)
PROBE_BASE = (
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content="List the files.\n"),
)
_CALLS = (
    ToolCall(id="a", name="run", arguments='{"command": "ls"}'),
    ToolCall(id="b", name="run", arguments='{"command":  "pwd"}'),
)
_RESULTS = tuple(
    ChatMessage(role="tool", tool_call_id=call.id, content=f"result {call.id}") for call in _CALLS
)
_USER = ChatMessage(role="user", content="Go on <tool_call>.")
PROBES = (
    Probe("user", ChatMessage(role="assistant", content="Here."), (_USER,)),
    Probe("system", ChatMessage(role="assistant", content="Ok"), (PROBE_BASE[0], _USER)),
    Probe(
        "tools",
        ChatMessage(role="assistant", content="Both.", tool_calls=_CALLS),
        (*_RESULTS, _USER),
    ),
    Probe(
        "reasoning",  # kept by the template only up to the next user message
        ChatMessage(role="assistant", content="I look.", reasoning="Hm", tool_calls=_CALLS[:1]),
        _RESULTS[:1],
    ),
)
