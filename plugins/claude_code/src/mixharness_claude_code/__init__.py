"""mixharness plugin: the released Claude Code program as a harness. Parts are in `harness`."""

from __future__ import annotations

from typing import Any

from mixharness import Harness, hookimpl
from mixharness_claude_code.harness import ClaudeCode, ClaudeCodeConfig

__all__ = ["ClaudeCode", "ClaudeCodeConfig", "register_harnesses"]


@hookimpl
def register_harnesses() -> list[type[Harness[Any]]]:
    """Return the harness `claude_code`."""
    return [ClaudeCode]
