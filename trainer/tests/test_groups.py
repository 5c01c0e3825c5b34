from dataclasses import replace

import pytest

from mixharness.types import (
    Delivery,
    Failure,
    FailureKind,
    GroupKey,
    ModelCall,
    Rollout,
    Score,
)
from mixharness_trainer.groups import group_rollouts


def rollout(task: str, harness: str, reward: float, number: int = 0) -> Rollout:
    name = f"{task}-{harness}-{number}"
    call = ModelCall(
        id=f"{name}-0",
        rollout_id=name,
        index=0,
        environment_ids=(1, 2, 3),
        sampled_ids=(4, 5),
        logprobs=(-0.5, -0.25),
        delivery=Delivery.DELIVERED,
    )
    return Rollout(id=name, key=GroupKey(task, harness), calls=(call,), score=Score(value=reward))


def failed(kind: FailureKind, number: int, score: float | None = None) -> Rollout:
    whole = rollout("a", "agentloop", 0.0, number)
    return replace(
        whole, failure=Failure(kind=kind), score=None if score is None else Score(value=score)
    )


def test_a_group_is_one_pair_of_task_and_harness():
    batch = [rollout(t, h, r, n) for n, r in ((0, 0.0), (1, 1.0)) for t in "ab" for h in "xy"]
    grouped = group_rollouts(batch, min_group_size=2)
    keys = [GroupKey(t, h) for t in "ab" for h in "xy"]
    assert [group.key for group in grouped.groups] == keys
    assert [group.rewards for group in grouped.groups] == [(0.0, 1.0)] * 4
    assert [[tree.trained_tokens for tree in g.trees] for g in grouped.groups] == [[2, 2]] * 4
    assert grouped.dropped == {}


def test_a_small_group_is_dropped_and_counted():
    batch = [rollout("a", "x", 1.0), rollout("a", "y", 1.0, 0), rollout("a", "y", 0.0, 1)]
    grouped = group_rollouts(batch, min_group_size=2)
    assert [group.key.harness for group in grouped.groups] == ["y"]
    assert grouped.dropped == {"small_group": 1}


@pytest.mark.parametrize("kind", [FailureKind.ENGINE_ERROR, FailureKind.CANCELLED])
def test_what_is_excluded_is_in_no_baseline(kind):
    batch = [rollout("a", "agentloop", float(n), n) for n in range(2)]
    grouped = group_rollouts([*batch, failed(kind, 2)], min_group_size=2)
    assert [group.rewards for group in grouped.groups] == [(0.0, 1.0)]
    assert grouped.dropped == {str(kind): 1}


def test_a_failure_of_the_policy_stays_with_its_score():
    batch = [rollout("a", "agentloop", 1.0), failed(FailureKind.MAX_TURNS, 1, score=0.25)]
    grouped = group_rollouts(batch, min_group_size=2)
    assert [group.rewards for group in grouped.groups] == [(1.0, 0.25)]
    assert grouped.dropped == {}
