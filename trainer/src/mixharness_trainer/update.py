"""One optimizer batch: groups of any mix of harnesses in, new weights and figures out.

Publishing the weights is weights.py; which rollouts to collect is the train loop's.

Shapes: E edges of a packed batch.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import fmean
from typing import Any

import structlog
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mixharness.errors import ConfigError
from mixharness.optimizer import Edges, Optimizer
from mixharness.types import RolloutGroup
from mixharness_trainer.edges import edge_values
from mixharness_trainer.loss import GroupCounts, gap_metrics, token_weights
from mixharness_trainer.packing import Member, PackedBatch, pack
from mixharness_trainer.policy import Policy

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """How an optimizer batch becomes steps. The learning rate is the policy's."""

    max_grad_norm: float = 1.0
    minibatches: int = 1
    """AdamW steps per epoch; groups are dealt to them whole."""
    epochs: int = 1
    loss_normalization: str | None = None
    """`group`, `rollout`, `token` or `harness`; None is the optimizer's own default."""
    max_tokens_per_batch: int = 8192
    """Tokens of one forward pass. Changes speed and memory, never the gradient."""
    drop_unanimous: bool = False
    """Take groups without any advantage out of the loss's denominators."""
    fake_logprobs: bool = False
    """The rollouts' log-probs are made up (the engine says so)."""


def update(
    policy: Policy,
    groups: Sequence[RolloutGroup],
    optimizer: Optimizer[Any],
    settings: UpdateSettings,
    reference: PreTrainedModel | None = None,
) -> dict[str, float]:
    """Update the policy once by the whole mixed batch and return the step's figures.

    Advantages are taken group by group, denominators over the whole batch (TOKENS_AND_TREES
    section 5). Nothing moves when no group is left or no token is trained.

    Raises:
        ConfigError: a policy gradient on made-up log-probs, or an unknown normalization.
        GapError: engine and trainer have disagreed for too many steps.
    """
    if settings.fake_logprobs and optimizer.uses_logprobs:
        message = (
            f"{optimizer.name} needs the log-probs of the policy that sampled, and this engine "
            "makes them up; use an engine that samples, or the optimizer sft"
        )
        raise ConfigError("the run file", [("optimizer.name", message)])
    kept = [group for group in groups if len(group.rollouts) >= optimizer.min_group_size]
    scored = [_score(group, optimizer) for group in kept]
    step = _Step(policy, optimizer, settings, reference)
    step.run(_weigh(scored, settings, settings.loss_normalization or optimizer.normalization))
    policy.step += 1
    totals = {
        "groups": len(kept),
        "groups_dropped": len(groups) - len(kept),
        "rollouts": sum(len(group.rollouts) for group in kept),
        "lr": policy.lr,
    }
    return {**totals, **_harness_metrics(kept, scored), **step.metrics()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """A group's rollouts with their advantages."""

    harness: str
    members: list[Member]

    @property
    def has_contrast(self) -> bool:
        return _has_contrast(self.members)


def _has_contrast(members: Sequence[Member]) -> bool:
    return any(any(member.advantages) for member in members)


def _score(group: RolloutGroup, optimizer: Optimizer[Any]) -> _Scored:
    advantages = optimizer.advantages(group)
    expected = [tree.trained_tokens for tree in group.trees]
    if [len(values) for values in advantages] != expected:
        raise ValueError(f"optimizer {optimizer.name} must give one advantage per trained token")
    columns = zip(group.rollouts, group.trees, advantages, strict=True)
    harness = group.key.harness
    members = [
        Member(rollout_id=r.id, tree=tree, advantages=row, harness=harness)
        for r, tree, row in columns
    ]
    if not optimizer.uses_logprobs:  # a likelihood has no baseline: what it ignores is no sample
        members = [member for member in members if any(member.advantages)]
    return _Scored(harness=harness, members=members)


def _weigh(
    scored: Sequence[_Scored], settings: UpdateSettings, normalization: str
) -> list[list[Member]]:
    """Number and weigh the rollouts of the batch, denominators over all of it."""
    counted = [
        item
        for item in scored
        if item.members and (item.has_contrast or not settings.drop_unanimous)
    ]
    counts = [
        GroupCounts(harness=s.harness, tokens=[m.tree.trained_tokens for m in s.members])
        for s in counted
    ]
    number = count()
    return [
        [
            replace(member, rollout=next(number), weight=weight)
            for member, weight in zip(item.members, weights, strict=True)
        ]
        for item, weights in zip(counted, token_weights(counts, normalization), strict=True)
    ]


def _harness_metrics(groups: Sequence[RolloutGroup], scored: Sequence[_Scored]) -> dict[str, float]:
    """Return mean reward and share of groups with contrast, per harness."""
    rewards: dict[str, list[float]] = defaultdict(list)
    contrasts: dict[str, list[float]] = defaultdict(list)
    for group, item in zip(groups, scored, strict=True):
        rewards[group.key.harness] += group.rewards
        contrasts[group.key.harness].append(float(item.has_contrast))
    means = {f"reward/{harness}": fmean(values) for harness, values in rewards.items()}
    return means | {f"contrast/{harness}": fmean(values) for harness, values in contrasts.items()}


@dataclass(slots=True)
class _Step:
    """The passes over one optimizer batch, and the sums its figures are made of."""

    policy: Policy
    optimizer: Optimizer[Any]
    settings: UpdateSettings
    reference: PreTrainedModel | None
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Edge-weighted sums of what is averaged over edges."""
    grad_norms: list[float] = field(default_factory=list)
    gaps: list[tuple[PackedBatch, Tensor]] = field(default_factory=list)
    """Batches of the first epoch with their log π_old [E]."""
    harness_of: dict[int, str] = field(default_factory=dict)
    """Rollout index to harness label."""

    def run(self, groups: list[list[Member]]) -> None:
        """Take `epochs` times `minibatches` steps."""
        self.harness_of = {m.rollout: m.harness for members in groups for m in members}
        minibatches = [self._pack(part) for part in self._deal(groups)]
        olds: list[list[Tensor | None]] = [[None] * len(part) for part in minibatches]
        if self.settings.epochs * len(minibatches) > 1:
            olds = [[self._frozen(batch) for batch in part] for part in minibatches]
        for epoch in range(self.settings.epochs):
            for batches, old in zip(minibatches, olds, strict=True):
                for batch, old_E in zip(batches, old, strict=True):
                    self._accumulate(batch, old_E, scale=len(minibatches), first=epoch == 0)
                self._descend()

    def _deal(self, groups: list[list[Member]]) -> list[list[list[Member]]]:
        """Deal whole groups to minibatches, in an order that depends on the step alone."""
        number = min(self.settings.minibatches, len(groups)) or 1
        if number == 1:
            return [groups]
        shuffled = random.Random(self.policy.step).sample(groups, len(groups))
        return [shuffled[start::number] for start in range(number)]

    def _pack(self, groups: list[list[Member]]) -> list[PackedBatch]:
        """Pack groups without contrast apart: their batches need no backward pass.

        Groups of one kind are merged into one tree, so that system prompt and tools, which all
        tasks of a harness share, are read once.
        """
        limit, policy = self.settings.max_tokens_per_batch, self.policy
        kinds = [
            [m for group in groups if _has_contrast(group) is kind for m in group]
            for kind in (True, False)
        ]
        batches = pack([k for k in kinds if k], max_tokens=limit, layout=policy.layout)
        return [batch.to(policy.model.device) for batch in batches]

    @torch.no_grad()
    def _frozen(self, batch: PackedBatch, model: PreTrainedModel | None = None) -> Tensor:
        return edge_values(model or self.policy.model, batch, self.policy.layout)[0]

    def _accumulate(
        self, batch: PackedBatch, old_E: Tensor | None, *, scale: int, first: bool
    ) -> None:
        """Add one packed batch's gradient; `scale` undoes the cut into minibatches."""
        logp_E, entropy_E = edge_values(self.policy.model, batch, self.policy.layout)
        # The loss is taken on leaves: where it asks for no gradient, the model's backward
        # pass, two thirds of the cost, is left out.
        leaf_logp_E = logp_E.detach().requires_grad_()
        leaf_entropy_E = entropy_E.detach().requires_grad_()
        old_E = logp_E.detach() if old_E is None else old_E
        edges = Edges(
            logp=leaf_logp_E,
            logp_old=old_E,
            logp_rollout=batch.logp_rollout_E,
            logp_ref=None if self.reference is None else self._frozen(batch, self.reference),
            entropy=leaf_entropy_E,
            advantage=batch.advantage_E,
            weight=batch.weight_E * scale,
            rollout=batch.rollout_E,
        )
        output = self.optimizer.loss(edges)
        output.loss.backward()
        outputs = [
            (value, leaf.grad)
            for value, leaf in ((logp_E, leaf_logp_E), (entropy_E, leaf_entropy_E))
            if leaf.grad is not None and leaf.grad.any()
        ]
        if outputs:
            values, gradients = zip(*outputs, strict=True)
            torch.autograd.backward(values, gradients)
        self._note(batch, {"entropy": float(entropy_E.detach().mean()), **output.metrics})
        self.sums["loss"] += float(output.loss.detach()) / (scale * self.settings.epochs)
        if first:
            self.gaps.append((batch, old_E))

    def _gap_metrics(self) -> dict[str, float]:
        """Compare engine and trainer, over all tokens and over those of the current weights.

        Raises:
            GapError: see `GapAlarm`.
        """
        if not self.gaps or not self.optimizer.uses_logprobs:
            return {}
        old_E = torch.cat([old for _, old in self.gaps])
        rollout_E = torch.cat([batch.logp_rollout_E for batch, _ in self.gaps])
        fresh_E = torch.cat([batch.version_E for batch, _ in self.gaps]) == self.policy.version
        metrics = gap_metrics(old_E, rollout_E)
        owners = [self.harness_of[i] for b, _ in self.gaps for i in b.rollout_E.tolist()]
        for harness in dict.fromkeys(owners):
            own_E = torch.tensor([owner == harness for owner in owners], device=old_E.device)
            own = gap_metrics(old_E[own_E], rollout_E[own_E])
            metrics[f"logp_gap/mean_abs/{harness}"] = own["logp_gap/mean_abs"]
        if fresh_E.any():
            lag_0 = gap_metrics(old_E[fresh_E], rollout_E[fresh_E])["logp_gap/mean_abs"]
            metrics["logp_gap/mean_abs_lag_0"] = lag_0
            self.policy.gap_alarm.observe(lag_0)
        return metrics

    def _note(self, batch: PackedBatch, figures: dict[str, float]) -> None:
        self.sums["edges"] += batch.num_edges
        self.sums["tokens_read"] += batch.num_tokens
        for name, value in figures.items():
            self.sums[f"mean {name}"] += value * batch.num_edges

    def _descend(self) -> None:
        """Clip and step; a gradient that is not finite moves nothing and is counted."""
        parameters = list(self.policy.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings.max_grad_norm)
        self.grad_norms.append(float(norm))
        if torch.isfinite(norm):
            self.policy.adamw.step()
        else:
            self.sums["steps_skipped"] += 1
            log.warning("update_skipped", reason="gradient is not finite", step=self.policy.step)
        self.policy.adamw.zero_grad(set_to_none=True)

    def metrics(self) -> dict[str, float]:
        """Return the figures of the step.

        Raises:
            GapError: engine and trainer have disagreed for too many steps.
        """
        edges = self.sums["edges"] or 1.0
        means = {
            name.removeprefix("mean "): value / edges
            for name, value in self.sums.items()
            if name.startswith("mean ")
        }
        return {
            "loss": self.sums["loss"],
            "grad_norm": fmean(self.grad_norms) if self.grad_norms else 0.0,
            "steps_skipped": self.sums["steps_skipped"],
            "tokens": self.sums["edges"] / self.settings.epochs,
            "tokens_read": self.sums["tokens_read"] / self.settings.epochs,
            **means,
            **self._gap_metrics(),
        }
