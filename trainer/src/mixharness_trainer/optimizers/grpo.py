"""Group-relative policy optimization (TOKENS_AND_TREES section 5). Packing and steps: update.py.

Shapes: E edges.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from mixharness.component import ComponentConfig
from mixharness.errors import ConfigError
from mixharness.optimizer import Edges, LossOutput, Optimizer
from mixharness.types import RolloutGroup

if TYPE_CHECKING:
    from torch import Tensor

STD_EPSILON = 1e-6
"""ε of the advantage's divisor."""


class GrpoConfig(ComponentConfig):
    """Settings of GRPO; the defaults are the paper's, but for `beta`."""

    scale: Literal["std", "none"] = "std"
    """Divide the centred reward by the group's population standard deviation, or by nothing."""
    eps_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio π_θ/π_old is clipped below at 1 - eps_low."""
    eps_high: float = Field(default=0.2, gt=0)
    """And above at 1 + eps_high."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL from the reference policy; 0 needs no reference."""
    kl: Literal["k2", "k3"] = "k3"
    """KL estimator on the sampled token."""
    min_contrast: float = Field(default=1e-6, ge=0)
    """Below this standard deviation of rewards the advantage is 0 (0.05 suits a judge)."""
    correction: Literal["token", "mask", "sequence", "off"] = "token"
    """How the loss corrects for the engine's log-probs (loss.py)."""
    correction_cap: float = Field(default=2.0, gt=1)
    """Largest correction weight c̄; the band of `mask` is [1/c̄, c̄]."""


class Grpo(Optimizer[GrpoConfig]):
    """The paper's GRPO: clipped ratio, corrected for the rollout policy, KL inside the weight."""

    name = "grpo"
    config_type = GrpoConfig
    min_group_size: ClassVar[int] = 2
    normalization: ClassVar[str] = "group"

    def advantages(
        self, group: RolloutGroup, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """Return (R_i - mean R) / (std R + ε) for every trained token; `values` are not used."""
        rewards = group.rewards
        mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
        if std < self.config.min_contrast:
            return [[0.0] * tree.trained_tokens for tree in group.trees]
        divisor = std + STD_EPSILON if self.config.scale == "std" else 1.0
        pairs = zip(rewards, group.trees, strict=True)
        return [[(reward - mean) / divisor] * tree.trained_tokens for reward, tree in pairs]

    def loss(self, edges: Edges) -> LossOutput:
        """Return -Σ weight · w · (min(ρÂ, clip(ρ)Â) - β·kl).

        Raises:
            ConfigError: beta > 0 but the edges carry no reference log-probs.
        """
        from mixharness_trainer.loss import LogProbs, correction_weights

        config = self.config
        logps = LogProbs(
            old=edges.logp_old, rollout=edges.logp_rollout, rollout_index=edges.rollout
        )
        correction_E = correction_weights(logps, config.correction, config.correction_cap)
        ratio_E = (edges.logp - edges.logp_old).exp()
        clipped_E = ratio_E.clamp(1 - config.eps_low, 1 + config.eps_high)
        free_E, bound_E = ratio_E * edges.advantage, clipped_E * edges.advantage
        objective_E = free_E.minimum(bound_E)
        metrics = {"ratio_clipped": float((bound_E < free_E).float().mean())}
        if config.beta > 0:
            kl_E = self._kl(edges)
            metrics["kl_ref"] = float(kl_E.detach().mean())
            objective_E = objective_E - config.beta * kl_E
        return LossOutput(-(edges.weight * correction_E * objective_E).sum(), metrics)

    def _kl(self, edges: Edges) -> Tensor:
        if edges.logp_ref is None:
            message = "needs a reference policy, and none is loaded; set beta = 0 or give one"
            raise ConfigError("the optimizer's settings", [("beta", message)])
        gap_E = edges.logp_ref - edges.logp
        return gap_E.square() / 2 if self.config.kl == "k2" else gap_E.expm1() - gap_E
