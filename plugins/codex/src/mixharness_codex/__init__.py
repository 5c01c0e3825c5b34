"""mixharness plugin: the released Codex program as a harness. Parts are in `harness`."""

from __future__ import annotations

from typing import Any

from mixharness import Harness, hookimpl
from mixharness_codex.harness import Codex, CodexConfig

__all__ = ["Codex", "CodexConfig", "register_harnesses"]


@hookimpl
def register_harnesses() -> list[type[Harness[Any]]]:
    """Return the harness `codex`."""
    return [Codex]
