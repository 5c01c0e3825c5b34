"""mixharness plugin: the released OpenClaw program as a harness. Parts are in `harness`."""

from __future__ import annotations

from typing import Any

from mixharness import Harness, hookimpl
from mixharness_openclaw.harness import OpenClaw, OpenClawConfig

__all__ = ["OpenClaw", "OpenClawConfig", "register_harnesses"]


@hookimpl
def register_harnesses() -> list[type[Harness[Any]]]:
    """Return the harness `openclaw`."""
    return [OpenClaw]
