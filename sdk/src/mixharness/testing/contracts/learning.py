"""The torch-free half of the contract of optimizers; their losses are tested in the trainer."""

from __future__ import annotations

import math
from typing import Any

from mixharness.optimizer import Optimizer
from mixharness.testing.contracts.component import ComponentContract
from mixharness.types import (
    GroupKey,
    NodeKind,
    Rollout,
    RolloutGroup,
    Score,
    TokenNode,
    TokenTree,
)


def make_group(rewards: list[float], num_tokens: list[int]) -> RolloutGroup:
    """Return a group whose rollouts have one sampled node each, of the given lengths."""
    key = GroupKey("task", "echo")
    rollouts = [
        Rollout(id=f"r{i}", key=key, calls=(), score=Score(value=reward))
        for i, reward in enumerate(rewards)
    ]
    trees = [
        TokenTree(
            (
                TokenNode(parent=-1, kind=NodeKind.ENVIRONMENT, ids=(1, 2), depth=0),
                TokenNode(
                    parent=0,
                    kind=NodeKind.SAMPLED,
                    ids=tuple(range(length)),
                    logprobs=(-1.0,) * length,
                    depth=2,
                    rollout_id=f"r{i}",
                    call_id=f"r{i}-0",
                    trained=True,
                ),
            )
        )
        for i, length in enumerate(num_tokens)
    ]
    return RolloutGroup(key, tuple(rollouts), tuple(trees))


def advantages(component: Optimizer[Any], group: RolloutGroup) -> list[list[float]]:
    """Return the group's advantages, with values of 0.5 where the optimizer asks for a critic."""
    values = [[0.5] * tree.trained_tokens for tree in group.trees] if component.critic else None
    return component.advantages(group, values)


class OptimizerContract(ComponentContract):
    """Advantages fit the group they are taken over."""

    def test_one_finite_advantage_per_trained_token(self, component: Optimizer[Any]) -> None:
        """The shape is (rollouts, trained tokens)."""
        group = make_group([0.0, 1.0, 0.25], [3, 1, 2])
        for rows in (advantages(component, group), component.returns(group)):
            assert [len(row) for row in rows] == [3, 1, 2]
            assert all(math.isfinite(value) for row in rows for value in row)

    def test_no_contrast_is_finite(self, component: Optimizer[Any]) -> None:
        """Equal rewards divide by nothing."""
        rows = advantages(component, make_group([0.5, 0.5], [2, 2]))
        assert all(math.isfinite(value) for row in rows for value in row)

    def test_the_order_of_rollouts_does_not_matter(self, component: Optimizer[Any]) -> None:
        """The best rollout keeps its advantage wherever it stands."""
        first = advantages(component, make_group([0.0, 1.0, 0.25], [2, 2, 2]))
        last = advantages(component, make_group([0.25, 0.0, 1.0], [2, 2, 2]))
        for mine, other in zip(first[1], last[2], strict=True):
            assert math.isclose(mine, other, abs_tol=1e-12)
