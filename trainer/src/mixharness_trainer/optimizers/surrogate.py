"""The clipped objective that GRPO and PPO share. Their advantages are in files of their own.

Shapes: E edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mixharness.component import ComponentConfig
from mixharness.optimizer import Edges

if TYPE_CHECKING:
    from torch import Tensor


class SurrogateConfig(ComponentConfig):
    """Settings of the ratio π_θ/π_old and of the weight that corrects for the rollout policy."""

    eps_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio π_θ/π_old is clipped below at 1 - eps_low."""
    eps_high: float = Field(default=0.2, gt=0)
    """And above at 1 + eps_high."""
    correction: Literal["token", "mask", "sequence", "off"] = "token"
    """How the loss is corrected for the engine's log-probs: by the ratio π_old/π_rollout of each
    token, capped (`token`); by the same, but 0 outside the band [1/c, c] (`mask`); by the ratio of
    the whole rollout, capped (`sequence`); or not (`off`)."""
    correction_cap: float = Field(default=2.0, gt=1)
    """The cap c of the correction weight."""


def clipped_objective(edges: Edges, config: SurrogateConfig) -> tuple[Tensor, dict[str, float]]:
    """Return min(ρÂ, clip(ρ, 1 - eps_low, 1 + eps_high)Â) [E] and the share that is clipped.

    Source: ClawGym II (arXiv:2608.16798), L_PPO, whose mask M is the existence of the edge.
    """
    ratio_E = (edges.logp - edges.logp_old).exp()
    clipped_E = ratio_E.clamp(1 - config.eps_low, 1 + config.eps_high)
    free_E, bound_E = ratio_E * edges.advantage, clipped_E * edges.advantage
    return free_E.minimum(bound_E), {"ratio_clipped": float((bound_E < free_E).float().mean())}


def corrected_loss(
    edges: Edges, config: SurrogateConfig, objective_E: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """Return -Σ weight · w · objective, w being the rollout correction, and the share it limits.

    Source: ClawGym II (arXiv:2608.16798), w_t = min(exp(log π_old - log π_rollout), c).
    """
    from mixharness_trainer.loss import LogProbs, correction_weights

    logps = LogProbs(old=edges.logp_old, rollout=edges.logp_rollout, rollout_index=edges.rollout)
    correction_E = correction_weights(logps, config.correction, config.correction_cap)
    limited_E = (correction_E == config.correction_cap) | (correction_E == 0)
    loss = -(edges.weight * correction_E * objective_E).sum()
    return loss, {"correction_limited": float(limited_E.float().mean())}
