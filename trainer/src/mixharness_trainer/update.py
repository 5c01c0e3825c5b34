"""One optimizer batch: groups of any mix of harnesses in, new weights and figures out.

Publishing the weights is weights.py; which rollouts to collect is the train loop's.

Shapes: E edges of a packed batch.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import structlog
import torch
from mixharness.errors import ConfigError
from mixharness.optimizer import Edges, Optimizer
from mixharness.types import RolloutGroup
from torch import Tensor
from transformers import PreTrainedModel

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
    scored = [_Scored.of(group, optimizer) for group in kept]
    step = _Step(policy, optimizer, settings, reference)
    step.run(_members(scored, optimizer, settings))
    policy.step += 1
    counts = {
        "groups": len(kept),
        "groups_dropped": len(groups) - len(kept),
        "rollouts": sum(len(group.rollouts) for group in kept),
        "lr": policy.lr,
    }
    return {**counts, **_harness_metrics(scored), **step.metrics()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """A group with its advantages."""

    group: RolloutGroup
    advantages: list[list[float]]

    @classmethod
    def of(cls, group: RolloutGroup, optimizer: Optimizer[Any]) -> _Scored:
        advantages = optimizer.advantages(group)
        expected = [tree.trained_tokens for tree in group.trees]
        if [len(values) for values in advantages] != expected:
            raise ValueError(f"{optimizer.name} must give one advantage per trained token")
        return cls(group=group, advantages=advantages)

    @property
    def has_contrast(self) -> bool:
        return any(any(values) for values in self.advantages)


def _members(
    scored: Sequence[_Scored], optimizer: Optimizer[Any], settings: UpdateSettings
) -> list[list[Member]]:
    """Weigh the rollouts; groups with contrast come first, so that batches are of one kind."""
    if settings.drop_unanimous:
        scored = [item for item in scored if item.has_contrast]
    parts = [_counted(item, optimizer) for item in scored]
    scored, parts = _without_empty(scored, parts)
    counts = [
        GroupCounts(
            harness=item.group.key.harness,
            tokens=[item.group.trees[index].trained_tokens for index in part],
        )
        for item, part in zip(scored, parts, strict=True)
    ]
    weights = token_weights(counts, settings.loss_normalization or optimizer.normalization)
    number = iter(range(sum(map(len, parts))))
    members = [
        [
            Member(
                rollout=next(number),
                rollout_id=item.group.rollouts[index].id,
                tree=item.group.trees[index],
                advantages=item.advantages[index],
                weight=weight,
            )
            for index, weight in zip(part, part_weights, strict=True)
        ]
        for item, part, part_weights in zip(scored, parts, weights, strict=True)
    ]
    order = sorted(range(len(members)), key=lambda index: not scored[index].has_contrast)
    return [members[index] for index in order]
