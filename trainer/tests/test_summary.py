import json

import pytest

from mixharness.rollout.store import RunStore
from mixharness.types import Failure, FailureKind, GroupKey, Rollout, Score
from mixharness_trainer.policy import optimizer_hash, weight_hash
from mixharness_trainer.summary import Outcome, write_summary

BEFORE = {"x": {"a": [0.0, 1.0], "b": [0.0, 0.0], "c": [1.0, 1.0]}}
AFTER = {"x": {"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}}


HISTORY = [
    {"groups/x": 4, "groups_with_contrast/x": 1, "grad_norm/x": 0.5, "grad_norm": 2.0}
    | {"reward/x": 0.5, "tokens/x": 7, "gradient_cosine/w/x": -0.5},
    {},  # no group was usable
    {"groups/x": 2, "groups_with_contrast/x": 0, "grad_norm/x": 0.0, "grad_norm": float("inf")}
    | {"tokens/x": 3, "gradient_cosine/w/x": 0.25},
]


@pytest.fixture
def run_dir(tmp_path):
    store = RunStore(tmp_path)
    failure = Failure(kind=FailureKind.ENGINE_ERROR)
    rollout = Rollout(id="one", key=GroupKey("a", "x"), calls=(), failure=failure)
    store.begin(rollout.id)
    store.save(rollout)
    return tmp_path


def outcome(before, after) -> Outcome:
    return Outcome(before=before, after=after, history=HISTORY, wall_s=61.26)


def test_the_gain_is_paired_over_tasks(run_dir, policy):
    summary = write_summary(run_dir, policy(), outcome(BEFORE, AFTER))
    row = summary["harnesses"]["x"]
    assert row["before"] == pytest.approx(0.5)
    assert row["after"] == pytest.approx(5 / 6)
    assert row["diff"] == pytest.approx(1 / 3)
    # Differences 0.5, 0.5, 0: standard error 1/6, t(0.975, 2) = 4.3027.
    assert row["diff_low"] == pytest.approx(1 / 3 - 4.3027 / 6, abs=1e-3)
    assert row["diff_high"] == pytest.approx(1 / 3 + 4.3027 / 6, abs=1e-3)
    assert row["held_out_tasks"] == 3
    assert (row["rollouts"], row["failures_by_kind"]) == (1, {"engine_error": 1})


def test_what_is_returned_is_on_disk_beside_a_report(run_dir, policy):
    trained = policy()
    summary = write_summary(run_dir, trained, outcome(BEFORE, AFTER))
    assert json.loads((run_dir / "summary.json").read_text()) == summary
    assert (summary["steps"], summary["wall_s"]) == (3, 61.3)
    assert summary["weight_hash"] == weight_hash(trained)
    assert summary["optimizer_hash"] == optimizer_hash(trained)
    assert "+0.333" in (run_dir / "report.html").read_text()


def test_a_mixed_run_can_be_judged_from_the_summary(run_dir, policy):
    store = RunStore(run_dir)
    for number, reward in enumerate((0.0, 1.0)):
        name = f"refill-{number}"
        score = Score(value=reward)
        store.begin(name)
        store.save(Rollout(id=name, key=GroupKey("a", "x"), calls=(), score=score, refill=number))
    summary = write_summary(run_dir, policy(), outcome({}, {}))
    row = summary["harnesses"]["x"]
    assert (row["groups"], row["groups_with_contrast"]) == (6, 1)
    assert (row["grad_norm"], summary["grad_norm"]) == (0.25, 2.0)
    assert (row["trained"], row["tokens"]) == (True, 10)
    assert summary["gradient_cosine"] == {"w/x": -0.125}
    assert (row["bridge_rate"], row["unexplained_loss"]) == (1.0, 0.0)
    assert (row["infra_failures"], row["refilled"], row["retried"]) == (1, 1, 0)
    assert row["kept"] == {"rollouts": 2, "reward": 0.5, "calls": 0.0, "tokens": 0.0}
    assert row["excluded"] == {"rollouts": 1, "reward": None, "calls": 0.0, "tokens": 0.0}
    page = (run_dir / "report.html").read_text()
    assert "<td>2 / 1</td><td>0.500 / –</td>" in page


def test_a_harness_without_a_step_was_left_out(run_dir, policy):
    store = RunStore(run_dir)
    store.begin("other")
    score = Score(value=1.0)
    store.save(Rollout(id="other", key=GroupKey("a", "y"), calls=(), score=score))
    rows = write_summary(run_dir, policy(), outcome({}, {}))["harnesses"]
    assert (rows["x"]["trained"], rows["y"]["trained"]) == (True, False)
    assert "y (left out)</td>" in (run_dir / "report.html").read_text()


@pytest.mark.parametrize(
    ("before", "after", "means"),
    [
        ({}, {}, (None, None)),
        (BEFORE, {}, (0.5, None)),
        ({"x": {"a": [1.0]}}, {"x": {"b": [0.0]}}, (1.0, 0.0)),
    ],
)
def test_what_was_not_measured_is_none(run_dir, policy, before, after, means):
    row = write_summary(run_dir, policy(), outcome(before, after))["harnesses"]["x"]
    assert (row["before"], row["after"]) == means
    assert (row["diff"], row["diff_low"], row["diff_high"]) == (None, None, None)
    assert row["held_out_tasks"] == 0
