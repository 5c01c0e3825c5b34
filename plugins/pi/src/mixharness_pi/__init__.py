"""mixharness plugin: the released pi coding agent as a harness. Parts are in `harness`."""

from __future__ import annotations

from typing import Any

from mixharness import Harness, hookimpl
from mixharness_pi.harness import Pi, PiConfig

__all__ = ["Pi", "PiConfig", "register_harnesses"]


@hookimpl
def register_harnesses() -> list[type[Harness[Any]]]:
    """Return the harness `pi`."""
    return [Pi]
