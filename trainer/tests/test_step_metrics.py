import pytest

from mixharness import Limits
from mixharness.plugins import load_plugins
from mixharness.rollout.types import HarnessSlot
from mixharness.types import Failure, FailureKind, GroupKey, Rollout, Score
from mixharness_trainer.groups import Grouped
from mixharness_trainer.step_metrics import step_metrics


@pytest.fixture
def slots():
    cls = load_plugins().get("harness", "agentloop")
    harness = cls(cls.config_type())
    return [
        HarnessSlot(label=label, harness=harness, program=None, limits=Limits())
        for label in ("x", "y")
    ]


def grouped(group, tree, rewards: dict[str, list[list[float]]], **dropped: int) -> Grouped:
    groups = [
        group(
            label, [tree(f"{label}{t}{n}", [(-1, "e", 2), (0, "s", 2)]) for n in range(2)], two, t
        )
        for label, tasks in rewards.items()
        for t, two in enumerate(tasks)
    ]
    return Grouped(tuple(groups), dropped)


def rollouts_of(grouped: Grouped) -> list[Rollout]:
    return [rollout for group in grouped.groups for rollout in group.rollouts]


def test_contrast_is_the_share_of_groups_that_differ(slots, group, tree):
    batch = grouped(group, tree, {"x": [[0.0, 1.0], [1.0, 1.0]], "y": [[0.5, 0.5]]})
    metrics = step_metrics(slots, rollouts_of(batch), batch, {"groups_with_contrast/x": 1})
    assert (metrics["contrast/x"], metrics["contrast/y"]) == (0.5, 0.0)
    assert (metrics["reward/x"], metrics["reward/y"]) == (0.75, 0.5)
    assert "contrast_note/x" not in metrics
    assert metrics["contrast_note/y"] == "all 1 groups are unanimous, at rewards 0.50"
    assert metrics["rollouts"] == 6


def test_a_harness_without_usable_rollouts_has_no_reward_and_a_note(slots, group, tree):
    batch = grouped(group, tree, {"x": [[0.0, 1.0]]}, engine_error=2)
    failure = Failure(kind=FailureKind.ENGINE_ERROR)
    dead = [
        Rollout(id=f"d{n}", key=GroupKey("t", "y"), calls=(), failure=failure, refill=n)
        for n in (0, 1)
    ]
    metrics = step_metrics(slots, [*rollouts_of(batch), *dead], batch, {})
    assert metrics["reward/y"] is None
    assert (metrics["failures/x"], metrics["failures/y"]) == (0, 2)
    assert metrics["refilled"] == 1
    assert metrics["failures_by_kind"] == metrics["dropped"] == {"engine_error": 2}
    assert metrics["contrast_note/y"].startswith("no usable group")


def test_a_harness_that_took_no_part_has_no_figures(slots, group, tree):
    batch = grouped(group, tree, {"x": [[0.0, 1.0]]})
    metrics = step_metrics(slots, rollouts_of(batch), batch, {"groups_with_contrast/x": 1})
    assert metrics["reward/x"] == 0.5
    assert not [name for name in metrics if name.endswith("/y")]


def test_a_failure_of_the_policy_counts_and_keeps_its_reward(slots):
    failure = Failure(kind=FailureKind.MAX_TURNS)
    late = Rollout(
        id="late", key=GroupKey("t", "x"), calls=(), failure=failure, score=Score(value=0.25)
    )
    metrics = step_metrics(slots, [late], Grouped((), {"small_group": 1}), {})
    assert (metrics["reward/x"], metrics["failures/x"]) == (0.25, 1)
