"""mixharness plugin: AgentLoop, the white-box harness. Its parts are imported when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixharness import Harness, hookimpl


@hookimpl
def register_harnesses() -> Sequence[type[Harness[Any]]]:
    """Return the harness `agentloop`."""
    from mixharness_agentloop.harness import AgentLoop

    return [AgentLoop]
