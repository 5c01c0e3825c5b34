"""Named, versioned rules for how histories are compared and what the policy reads.

Two kinds, never mixed (TOKENS_AND_TREES 1.3): match rules shape fingerprints only and are always
on; render rules change what the policy reads and are off unless the run file names them. Those
that every harness has are rulebook.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mixharness.proxy.chat import ChatMessage, ChatRequest


@dataclass(frozen=True, slots=True)
class MatchRule:
    """Maps a message to the form that is compared. Must be idempotent."""

    name: str
    version: int
    apply: Callable[[ChatMessage], ChatMessage]


Recall = Callable[[ChatRequest], Mapping[int, ChatMessage]]
"""Finds the assistant messages of a request that this rollout's policy gave, their reasoning left
out of the comparison: index to the message as it was shown."""


@dataclass(frozen=True, slots=True)
class RenderRule:
    """Maps a request to the one that is rendered."""

    name: str
    version: int
    apply: Callable[[ChatRequest, Recall], ChatRequest]

    @property
    def label(self) -> str:
        """Return `name@version`, as stored with calls and checkpoints."""
        return f"{self.name}@{self.version}"
