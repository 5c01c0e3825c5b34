"""What a critic says of whole groups, and how well. The value model itself is critic.py's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from mixharness.types import RolloutGroup
from mixharness_trainer.packing import Member, pack
from mixharness_trainer.policy import Policy

Values = Sequence[Sequence[Sequence[float]]]
"""Per group and rollout, one number for each trained token in tree order."""


def group_values(policy: Policy, groups: Sequence[RolloutGroup], max_tokens: int) -> Values:
    """Return the critic's values before the update.

    Args:
        policy: with a critic.
        groups: of the optimizer batch.
        max_tokens: of one forward pass.
    """
    assert policy.critic is not None
    pairs = [pair for g in groups for pair in zip(g.rollouts, g.trees, strict=True)]
    lengths = [tree.trained_tokens for _, tree in pairs]
    members = [
        Member(rollout_id=rollout.id, tree=tree, advantages=[0.0] * length, rollout=number)
        for number, ((rollout, tree), length) in enumerate(zip(pairs, lengths, strict=True))
    ]
    batches = pack([members], max_tokens=max_tokens, layout=policy.layout)
    placed = [batch.to(policy.model.device) for batch in batches]
    rows = iter(policy.critic.rows(policy.model, placed, policy.layout, lengths))
    return [[next(rows) for _ in group.rollouts] for group in groups]


def value_metrics(values: Values, returns: Values) -> dict[str, float]:
    """Return the mean value, and the share of the returns' variance that the values explain.

    It is 1 - Var(G - V) / Var(G) over all trained tokens, and 0 where all returns are equal.
    """
    said, true = (_flat(nested) for nested in (values, returns))
    if not len(said):
        return {}
    variance = true.var(correction=0)
    explained = 1 - (true - said).var(correction=0) / variance if variance > 0 else 0.0
    return {"critic/value": float(said.mean()), "critic/explained_variance": float(explained)}


def _flat(nested: Values) -> torch.Tensor:
    rows = chain.from_iterable(nested)
    return torch.tensor(list(chain.from_iterable(rows)), dtype=torch.float64)
