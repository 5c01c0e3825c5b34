"""Normalization, rollout correction and the gap between engine and trainer.

What an optimizer makes of them is in optimizers/; advantages never appear here.

Shapes: E edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import structlog
import torch
from torch import Tensor

from mixharness.errors import ConfigError, MixHarnessError

log = structlog.get_logger()

Normalization = Literal["group", "rollout", "token", "harness"]
Correction = Literal["token", "mask", "sequence", "off"]

CORRECTION_CAP = 2.0
"""c̄ of TOKENS_AND_TREES section 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """What normalization needs of one group: its harness and T_i of every valid rollout."""

    harness: str
    tokens: Sequence[int]


def token_weights(groups: Sequence[GroupCounts], normalization: str) -> list[list[float]]:
    """Return the weight of one token of each rollout, per group (TOKENS_AND_TREES section 5).

    Denominators are those of the whole optimizer batch. A rollout without trained tokens counts
    in G (and in the number of rollouts); it has no token to weigh, so its entry is 0.

    Raises:
        ConfigError: unknown normalization.
    """
    num_tokens = sum(sum(group.tokens) for group in groups)
    num_rollouts = sum(len(group.tokens) for group in groups)
    groups_of = Counter(group.harness for group in groups)

    def per_rollout(group: GroupCounts) -> float:
        match normalization:
            case "group":
                return 1 / (len(groups) * len(group.tokens))
            case "harness":
                return 1 / (len(groups_of) * groups_of[group.harness] * len(group.tokens))
            case "rollout":
                return 1 / num_rollouts
        message = f"{normalization!r} is none of {', '.join(get_args(Normalization))}"
        raise ConfigError("the optimizer's settings", [("loss_normalization", message)])

    if normalization == "token":
        return [[1 / num_tokens if count else 0.0 for count in g.tokens] for g in groups]
    return [[per_rollout(g) / count if count else 0.0 for count in g.tokens] for g in groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProbs:
    """The two log-probs that correction compares, and whose they are; all [E], detached."""

    old: Tensor
    rollout: Tensor
    rollout_index: Tensor


def correction_weights(logps: LogProbs, mode: Correction, cap: float = CORRECTION_CAP) -> Tensor:
    """Return w [E], the detached weight that corrects for the engine's own distribution.

    `token`: min(π_old/π_rollout, cap). `mask`: the ratio inside [1/cap, cap], 0 outside.
    `sequence`: the ratio of the whole rollout, capped. `off`: 1.
    """
    gap_E = (logps.old - logps.rollout).detach()
    match mode:
        case "token":
            return gap_E.exp().clamp(max=cap)
        case "mask":
            ratio_E = gap_E.exp()
            # Not a product with the mask: a ratio beyond all floats times 0 is no number.
            return ratio_E.where((ratio_E <= cap) & (ratio_E >= 1 / cap), 0.0)
        case "sequence":
            size = int(logps.rollout_index.max()) + 1 if len(gap_E) else 0
            total = gap_E.new_zeros(size).index_add(0, logps.rollout_index, gap_E)
            return total.exp().clamp(max=cap)[logps.rollout_index]
        case "off":
            return torch.ones_like(gap_E)


def gap_metrics(old_E: Tensor, rollout_E: Tensor, cap: float = CORRECTION_CAP) -> dict[str, float]:
    """Return how far the engine's log-probs lie from the trainer's, over all given edges.

    KL is of rollout from old, estimated on the rollout's own samples: k1 = -Δ and
    k3 = exp(Δ) - 1 - Δ with Δ = log π_old - log π_rollout. The effective sample size is a share.
    """
    if not len(old_E):
        return {}
    gap_E = (old_E - rollout_E).double()
    ratio_E = gap_E.exp()
    capped_E = ratio_E.clamp(max=cap)
    figures = {
        "mean_abs": gap_E.abs().mean(),
        "mean": gap_E.mean(),
        "kl_k1": -gap_E.mean(),
        "kl_k3": (torch.expm1(gap_E) - gap_E).mean(),
        "effective_sample_size": capped_E.sum() ** 2 / (len(capped_E) * (capped_E**2).sum()),
        "clipped": (ratio_E > cap).double().mean(),
    }
    return {f"logp_gap/{name}": float(value) for name, value in figures.items()}


class GapError(MixHarnessError):
    """Engine and trainer disagree on the policy: training on would follow a wrong gradient."""


@dataclass(slots=True)
class GapAlarm:
    """Watches mean |Δ log p| of lag-0 tokens, step by step; lives as long as the run."""

    warn_at: float = 0.05
    stop_at: float = 0.2
    stop_after: int = 3
    history: list[float] = field(default_factory=list)
    """The figures of the last steps in a row that were beyond `stop_at`."""

    def observe(self, mean_abs_gap: float) -> None:
        """Take one step's figure.

        Raises:
            GapError: it was beyond `stop_at` in `stop_after` steps in a row.
        """
        if mean_abs_gap > self.warn_at:
            log.warning("logprob_gap_high", mean_abs=mean_abs_gap, warn_at=self.warn_at)
        if not mean_abs_gap <= self.stop_at:  # NaN counts as beyond
            self.history.append(mean_abs_gap)
        else:
            self.history.clear()
        if len(self.history) >= self.stop_after:
            figures = ", ".join(f"{figure:.3f}" for figure in self.history)
            raise GapError(
                f"engine and trainer disagree: mean |Δ log p| of tokens sampled by the current "
                f"weights was {figures} in the last {len(self.history)} steps (stop at "
                f"{self.stop_at}). Check that the engine loaded the published weights, samples "
                "without top_p, top_k or penalties, and uses the trainer's dtype"
            )
