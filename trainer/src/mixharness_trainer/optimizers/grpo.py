"""Group-relative policy optimization (TOKENS_AND_TREES section 5). Packing and steps: update.py.

Shapes: E edges.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from mixharness.errors import ConfigError
from mixharness.optimizer import Edges, LossOutput, Optimizer
from mixharness.types import RolloutGroup
from mixharness_trainer.optimizers.surrogate import (
    SurrogateConfig,
    clipped_objective,
    corrected_loss,
)

if TYPE_CHECKING:
    from torch import Tensor

STD_EPSILON = 1e-6
"""ε of the advantage's divisor."""


class GrpoConfig(SurrogateConfig):
    """Settings of GRPO; the defaults are the paper's, but for `beta`."""

    scale: Literal["std", "none"] = "std"
    """Divide the centred reward by the group's population standard deviation, or by nothing."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL from the reference, the policy as the run began; 0 loads no reference."""
    kl: Literal["exact", "k2", "k3"] = "exact"
    """KL over the full vocabulary, or an estimate of it on the sampled token."""
    min_contrast: float = Field(default=1e-6, ge=0)
    """Below this standard deviation of rewards the advantage is 0 (0.05 suits a judge)."""


class Grpo(Optimizer[GrpoConfig]):
    """The paper's GRPO: clipped ratio, corrected for the rollout policy, KL inside the weight."""

    name = "grpo"
    config_type = GrpoConfig
    min_group_size: ClassVar[int] = 2
    normalization: ClassVar[str] = "group"

    @property
    def reference(self) -> Literal["none", "sampled", "full"]:
        """Read a reference only where `beta` weighs it, and all of it for the exact KL."""
        if self.config.beta == 0:
            return "none"
        return "full" if self.config.kl == "exact" else "sampled"

    def advantages(
        self, group: RolloutGroup, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """Return (R_i - mean R) / (std R + ε) for every trained token; `values` are not used.

        Source: ClawGym II (arXiv:2608.16798), Â_i over one task's rollouts in one harness.
        """
        rewards = group.rewards
        mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
        if std < self.config.min_contrast:
            return [[0.0] * tree.trained_tokens for tree in group.trees]
        divisor = std + STD_EPSILON if self.config.scale == "std" else 1.0
        pairs = zip(rewards, group.trees, strict=True)
        return [[(reward - mean) / divisor] * tree.trained_tokens for reward, tree in pairs]

    def loss(self, edges: Edges) -> LossOutput:
        """Return -Σ weight · w · (min(ρÂ, clip(ρ)Â) - β·kl).

        Source: ClawGym II (arXiv:2608.16798), L_GRPO, of which it is the negative.

        Raises:
            ConfigError: beta > 0 but the edges carry nothing of a reference.
        """
        objective_E, metrics = clipped_objective(edges, self.config)
        if self.config.beta > 0:
            kl_E = self._kl(edges)
            metrics["kl_ref"] = float(kl_E.detach().mean())
            objective_E = objective_E - self.config.beta * kl_E
        loss, limited = corrected_loss(edges, self.config, objective_E)
        return LossOutput(loss, metrics | limited)

    def _kl(self, edges: Edges) -> Tensor:
        if self.config.kl == "exact" and edges.kl_ref is not None:
            return edges.kl_ref
        if self.config.kl == "exact" or edges.logp_ref is None:
            message = "needs a reference policy, and none is loaded; set beta = 0 or give one"
            raise ConfigError("the optimizer's settings", [("beta", message)])
        gap_E = edges.logp_ref - edges.logp
        return gap_E.square() / 2 if self.config.kl == "k2" else gap_E.expm1() - gap_E
