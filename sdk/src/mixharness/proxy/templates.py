"""Which renderer serves an engine: the families that `renderers` knows, or the template's own text.

How either works is in rendering/; a name belongs here once its probes pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from renderers import config_from_name

from mixharness.engine import EngineTokenizer
from mixharness.errors import TemplateError
from mixharness.proxy.rendering.family import FamilyBackend
from mixharness.proxy.rendering.template import TemplateBackend
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter

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

THINK = ("<think>", "</think>")
FAMILIES: dict[str, tuple[str, str]] = {
    "deepseek-r1": THINK,
    "deepseek-v3": THINK,
    "llama-3": THINK,
    "nemotron-3": THINK,
    "nemotron-3-ultra": THINK,
    "nemotron-3.5": THINK,
    "qwen3": THINK,
    "qwen3.5": THINK,
    "qwen3.6": THINK,
    "qwen3.8": THINK,
}
"""Names of families in `renderers`, and what stands before and after their reasoning."""

TEMPLATE = "template"
"""The name that stands for the chat template of the model folder itself."""


def make_backend(
    engine_tokenizer: EngineTokenizer, adapter: TokenizerAdapter
) -> FamilyBackend | TemplateBackend:
    """Return what renders for an engine.

    Raises:
        TemplateError: the name is unknown, the template's text is missing or cannot be extended,
            or the tokenizer lacks a token of the family.
    """
    name, parsers = engine_tokenizer.renderer, engine_tokenizer.parsers
    if parsers and (parsers.named or parsers.identity) and name != TEMPLATE:
        raise TemplateError(f"a parser was named, but {name!r} has its own; use {TEMPLATE!r}")
    if name in FAMILIES:
        retention = None if engine_tokenizer.rerender else "all"
        return FamilyBackend(partial(family_config, name, retention), adapter, FAMILIES[name])
    if name != TEMPLATE:
        known = ", ".join(sorted([*FAMILIES, TEMPLATE]))
        raise TemplateError(
            f"no renderer here can extend the chat template {name!r}; these work: {known}"
        )
    if not engine_tokenizer.chat_template:
        raise TemplateError(
            f"renderer {TEMPLATE!r} needs the model's own chat template, but its folder has none; "
            f"name a family instead: {', '.join(sorted(FAMILIES))}"
        )
    special_tokens = engine_tokenizer.special_tokens
    return TemplateBackend(engine_tokenizer.chat_template, special_tokens, adapter, parsers)


def family_config(name: str, retention: str | None) -> Any:
    """Return the configuration of a family; `retention` is what it does with past reasoning."""
    # Named outright: a self-trained tokenizer would otherwise get a renderer that cannot extend.
    return type(config_from_name(name))(thinking_retention=retention)
