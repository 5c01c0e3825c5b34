"""The nouns refuse what the rules forbid."""

import math
from dataclasses import replace

import pytest

from mixharness import (
    Failure,
    FailureClass,
    FailureKind,
    GroupKey,
    ModelCall,
    Rollout,
    RolloutGroup,
    Score,
    TokenTree,
)

KEY = GroupKey("t1", "echo")
DONE = Rollout(id="r1", key=KEY, calls=(), score=Score(value=1.0))
EMPTY = TokenTree(())


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_a_score_is_finite_and_between_0_and_1(value: float) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        Score(value=value)


def test_ids_without_logprobs_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 sampled ids but 1 log-probs"):
        ModelCall(
            id="c", rollout_id="r", index=0, environment_ids=(), sampled_ids=(1, 2), logprobs=(0.0,)
        )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("wall_clock", FailureClass.INFRA),
        ("agent_timeout", FailureClass.POLICY),
        ("endpoint_redirect", FailureClass.INTEGRITY),
        ("stale", FailureClass.RUN),
    ],
)
def test_every_failure_has_a_class(kind: str, expected: FailureClass) -> None:
    assert FailureKind(kind).failure_class is expected


def test_a_group_holds_one_key() -> None:
    other = replace(DONE, id="r2", key=GroupKey("t1", "other"))
    with pytest.raises(ValueError, match="one GroupKey"):
        RolloutGroup(KEY, (DONE, other), (EMPTY, EMPTY))


def test_an_infra_failure_enters_no_baseline() -> None:
    failed = replace(DONE, failure=Failure(kind=FailureKind.CONNECTION))
    with pytest.raises(ValueError, match="baseline"):
        RolloutGroup(KEY, (failed,), (EMPTY,))


def test_a_policy_failure_keeps_its_reward() -> None:
    slow = replace(DONE, failure=Failure(kind=FailureKind.MAX_TURNS), score=Score(value=0.5))
    assert RolloutGroup(KEY, (slow,), (EMPTY,)).rewards == (0.5,)


def test_a_rollout_without_a_score_has_no_reward() -> None:
    with pytest.raises(ValueError, match="no score"):
        _ = replace(DONE, score=None).reward
