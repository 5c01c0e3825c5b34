"""The figures of one update, gathered pass by pass. Those of its rollouts: step_metrics.py.

Shapes: E edges of a packed batch, R rollouts of the optimizer batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor

from mixharness_trainer.loss import gap_metrics
from mixharness_trainer.packing import PackedBatch
from mixharness_trainer.policy import Policy


@dataclass(slots=True, kw_only=True)
class UpdateFigures:
    """Sums over the passes of one optimizer batch."""

    passes: int
    """How often the policy reads each token."""
    harness_of: Mapping[int, str]
    """Rollout index to harness label."""
    critic_passes: int = 0
    """How often the critic learns from each token; 0 means as often as the policy."""
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Plain sums, and under `mean <name>` edge-weighted ones of what is averaged over edges."""
    grad_norms: list[float] = field(default_factory=list)
    critic_grad_norms: list[float] = field(default_factory=list)
    gaps: list[tuple[PackedBatch, Tensor]] = field(default_factory=list)
    """Batches of the first pass with their log π_old [E]."""
    pulls: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Squared gradient of the loss by log-prob, per harness."""

    cosines: list[dict[str, float]] = field(default_factory=list)
    """Of the gradients of two harnesses, by `<harness>/<harness>`, one for each minibatch."""

    def note(self, batch: PackedBatch, figures: Mapping[str, float]) -> None:
        """Count a pass over a batch, with figures that are means over its edges."""
        self.sums["edges"] += batch.num_edges
        self.sums["tokens_read"] += batch.num_tokens
        for name, value in figures.items():
            self.sums[f"mean {name}"] += value * batch.num_edges

    def note_pull(self, batch: PackedBatch, gradient_E: Tensor | None) -> None:
        """Add up the squared gradient of each harness's log-probs."""
        if gradient_E is None:
            return
        square_R = torch.zeros(len(self.harness_of), device=gradient_E.device)
        square_R.index_add_(0, batch.rollout_E, gradient_E.float().square())
        for rollout, square in enumerate(square_R.tolist()):
            self.pulls[self.harness_of[rollout]] += square

    def metrics(self) -> dict[str, float]:
        """Return the figures, but for the gap between engine and trainer."""
        edges = self.sums["edges"] or 1.0
        means = {
            name.removeprefix("mean "): value / edges
            for name, value in self.sums.items()
            if name.startswith("mean ")
        }
        return {
            "loss": self.sums["loss"],
            "grad_norm": fmean(self.grad_norms) if self.grad_norms else 0.0,
            **{f"grad_norm/{harness}": pull**0.5 for harness, pull in self.pulls.items()},
            **self._cosine_metrics(),
            "steps_skipped": self.sums["steps_skipped"],
            "tokens": self.sums["edges"] / self.passes,
            "tokens_read": self.sums["tokens_read"] / self.passes,
            **means,
            **self._critic_metrics(),
        }

    def _cosine_metrics(self) -> dict[str, float]:
        pairs = sorted({pair for cosines in self.cosines for pair in cosines})
        return {
            f"gradient_cosine/{pair}": fmean(c[pair] for c in self.cosines if pair in c)
            for pair in pairs
        }

    def _critic_metrics(self) -> dict[str, float]:
        if not self.critic_grad_norms:
            return {}
        return {
            "critic/loss": self.sums["critic/loss"] / (self.critic_passes or self.passes),
            "critic/grad_norm": fmean(self.critic_grad_norms),
            "critic/pretraining": float(self.critic_passes > 0),
            "time/critic_s": self.sums["time/critic_s"],
        }

    def gap(self, policy: Policy) -> dict[str, float]:
        """Compare engine and trainer, over all tokens and over those of the current weights.

        Raises:
            GapError: they have disagreed for too many steps (`GapAlarm`).
        """
        if not self.gaps:
            return {}
        old_E = torch.cat([old for _, old in self.gaps])
        rollout_E = torch.cat([batch.logp_rollout_E for batch, _ in self.gaps])
        fresh_E = torch.cat([batch.version_E for batch, _ in self.gaps]) == policy.version
        metrics = gap_metrics(old_E, rollout_E)
        owners = [self.harness_of[i] for b, _ in self.gaps for i in b.rollout_E.tolist()]
        for harness in dict.fromkeys(owners):
            own_E = torch.tensor([owner == harness for owner in owners], device=old_E.device)
            own = gap_metrics(old_E[own_E], rollout_E[own_E])
            metrics[f"logp_gap/mean_abs/{harness}"] = own["logp_gap/mean_abs"]
        if fresh_E.any():
            lag_0 = gap_metrics(old_E[fresh_E], rollout_E[fresh_E])["logp_gap/mean_abs"]
            metrics["logp_gap/mean_abs_lag_0"] = lag_0
            policy.gap_alarm.observe(lag_0)
        return metrics
