import pytest

from mixharness.tree.audit import audit
from mixharness.types import (
    CallRole,
    Delivery,
    Failure,
    FailureKind,
    GroupKey,
    ModelCall,
    Rollout,
    Score,
)


def call(index: int, sampled: int, environment: tuple[int, ...] = (1, 2), **fields: object):
    defaults = {"delivery": Delivery.DELIVERED}
    return ModelCall(
        id=f"c{index}",
        rollout_id="r",
        index=index,
        environment_ids=environment,
        sampled_ids=(9,) * sampled,
        logprobs=(-1.0,) * sampled,
        **{**defaults, **fields},
    )


def rollout(name: str, *calls: ModelCall, failure: FailureKind | None = None, harness: str = "h"):
    return Rollout(
        id=name,
        key=GroupKey("t", harness),
        calls=calls,
        score=None if failure else Score(value=1.0),
        failure=Failure(kind=failure) if failure else None,
    )


CHAIN = (call(0, 3), call(1, 2, parent_call="c0", parent_len=5, continues=("c0",)))


def test_a_clean_chain_loses_nothing():
    report = audit([rollout("r", *CHAIN)])["h"]
    assert (report.rollouts, report.calls) == (1, 2)
    assert (report.bridge_rate, report.delivered_fraction) == (1.0, 1.0)
    assert (report.unexplained_loss, report.segments_per_rollout) == (0.0, 1.0)
    assert report.remainder == {}


def test_what_pruning_left_out_is_split_by_reason():
    side = call(2, 4, role=CallRole.SUBAGENT, agent="x")
    lost = call(3, 1, parent_call="c1", parent_len=9, delivery=Delivery.PENDING)
    report = audit([rollout("r", *CHAIN, side, lost)])["h"]
    assert report.delivered_fraction == pytest.approx(0.5)
    assert report.remainder == {"role_subagent": 0.4, "undelivered": 0.1}
    assert report.unexplained_loss == 0.0


def test_a_broken_bridge_is_counted_with_its_reason():
    forked = call(2, 2, parent_call="c0", parent_len=2, continues=("c1",), fork="rewritten")
    report = audit([rollout("r", *CHAIN, forked)])["h"]
    assert report.bridge_rate == 0.5
    assert report.forks == {"rewritten": 1}
    assert report.segments_per_rollout == 2.0


def test_failed_rollouts_are_counted_but_their_tokens_are_not():
    dead = rollout("x", call(0, 7, delivery=Delivery.PENDING), failure=FailureKind.WALL_CLOCK)
    report = audit([rollout("r", *CHAIN), dead])["h"]
    assert report.delivered_fraction == 1.0
    assert report.failures == {"wall_clock": 1}
    assert report.rollouts == 2


def test_excessive_forks_found_by_pruning_are_a_failure():
    retries = [call(n, 1, parent_call="c0", parent_len=5, continues=("c0",)) for n in range(2, 20)]
    last = call(20, 1, parent_call="c1", parent_len=9, continues=("c1",))
    report = audit([rollout("r", *CHAIN, *retries, last)])["h"]
    assert report.failures == {"excessive_forks": 1}


def test_harnesses_are_kept_apart_and_groups_share_their_prompt():
    other = call(0, 1, environment=(1, 2, 3))
    same = call(0, 1, environment=(1, 2, 4))
    reports = audit([rollout("a", other), rollout("b", same), rollout("c", other, harness="g")])
    assert list(reports) == ["g", "h"]
    assert reports["h"].group_common_tokens == 2.0
    assert reports["g"].group_common_tokens == 0.0
