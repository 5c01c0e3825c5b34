"""Named, versioned rules for how histories are compared and what the policy reads.

Two kinds, never mixed (TOKENS_AND_TREES 1.3): match rules shape fingerprints only and are always
on; render rules change what the policy reads and are off unless the run file names them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mixharness.proxy.chat import ChatMessage, ChatRequest


@dataclass(frozen=True, slots=True)
class MatchRule:
    """Maps a message to the form that is compared. Must be idempotent."""

    name: str
    version: int
    apply: Callable[[ChatMessage], ChatMessage]


@dataclass(frozen=True, slots=True)
class RenderRule:
    """Maps a request to the one that is rendered."""

    name: str
    version: int
    apply: Callable[[ChatRequest], ChatRequest]

    @property
    def label(self) -> str:
        """Return `name@version`, as stored with calls and checkpoints."""
        return f"{self.name}@{self.version}"
