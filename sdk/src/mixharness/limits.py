"""Limits in the place of others, and whether they are nested. What they mean is types.py's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from mixharness.types import Limits

_KINDS: dict[str, Any] = {field.name: type(field.default) for field in fields(Limits)}


def overridden(limits: Limits, values: Mapping[str, float]) -> Limits:
    """Return limits with others in their place, whole numbers where they are counts.

    Raises:
        TypeError: there is no such limit.
    """
    return replace(limits, **{name: _KINDS.get(name, float)(x) for name, x in values.items()})


def nesting_problem(limits: Limits) -> str:
    """Return what is wrong with limits together, or nothing."""
    if limits.agent_s < limits.wall_s:
        return ""
    return (
        f"wall_s ({limits.wall_s:g}) must exceed agent_s ({limits.agent_s:g}): the agent's time is "
        "part of the wall's, and what ends on the wall clock only is not the agent's fault"
    )
