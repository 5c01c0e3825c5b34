"""Supervised fine-tuning on the kept tokens of passing rollouts. It reads no rollout log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from mixharness.component import ComponentConfig
from mixharness.optimizer import Edges, LossOutput, Optimizer
from mixharness.types import RolloutGroup


class SftConfig(ComponentConfig):
    """Settings of SFT."""

    pass_threshold: float = Field(default=1.0, ge=0, le=1)
    """Rollouts with at least this reward are imitated, the others are left out."""


class Sft(Optimizer[SftConfig]):
    """Cross-entropy; a rollout that does not pass carries advantage 0 and counts nowhere."""

    name = "sft"
    config_type = SftConfig
    uses_logprobs: ClassVar[bool] = False
    normalization: ClassVar[str] = "token"

    def advantages(
        self, group: RolloutGroup, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """Return 1 for every token of a passing rollout, 0 otherwise; `values` are not used."""
        passing = [float(reward >= self.config.pass_threshold) for reward in group.rewards]
        pairs = zip(passing, group.trees, strict=True)
        return [[advantage] * tree.trained_tokens for advantage, tree in pairs]

    def loss(self, edges: Edges) -> LossOutput:
        """Return the weighted cross-entropy -Σ weight · Â · log π_θ."""
        return LossOutput(-(edges.weight * edges.advantage * edges.logp).sum(), {})
