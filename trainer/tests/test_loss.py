import math

import pytest
import torch

from mixharness.errors import ConfigError
from mixharness_trainer.loss import (
    GapAlarm,
    GapError,
    GroupCounts,
    LogProbs,
    correction_weights,
    gap_metrics,
    token_weights,
)

GROUPS = [
    GroupCounts(harness="a", tokens=[4, 0]),
    GroupCounts(harness="a", tokens=[2, 2]),
    GroupCounts(harness="b", tokens=[5, 10, 1]),
]


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("group", [[1 / 3 / 2 / 4, 0], [1 / 12, 1 / 12], [1 / 9 / 5, 1 / 9 / 10, 1 / 9]]),
        ("rollout", [[1 / 7 / 4, 0], [1 / 14, 1 / 14], [1 / 7 / 5, 1 / 7 / 10, 1 / 7]]),
        ("token", [[1 / 24, 0], [1 / 24, 1 / 24], [1 / 24, 1 / 24, 1 / 24]]),
        (
            "harness",
            [[1 / 4 / 2 / 4, 0], [1 / 8 / 2, 1 / 8 / 2], [1 / 6 / 5, 1 / 6 / 10, 1 / 6]],
        ),
    ],
)
def test_weights_by_hand_with_a_rollout_without_tokens(normalization, expected):
    weights = token_weights(GROUPS, normalization)

    for got, wanted in zip(weights, expected, strict=True):
        assert got == pytest.approx(wanted)


def test_unknown_normalization_is_named():
    with pytest.raises(ConfigError, match="'sequence' is none of group, rollout, token, harness"):
        token_weights(GROUPS, "sequence")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token", [0.5, 2.0, 1.5, 0.25]),
        ("mask", [0.5, 0.0, 1.5, 0.0]),
        ("sequence", [2.0, 2.0, 0.375, 0.375]),
        ("off", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_correction_by_hand(mode, expected):
    ratio = torch.tensor([0.5, 8.0, 1.5, 0.25])
    old = torch.full((4,), -3.0, requires_grad=True)
    logps = LogProbs(old=old, rollout=-3.0 - ratio.log(), rollout_index=torch.tensor([1, 1, 3, 3]))

    weights = correction_weights(logps, mode)

    assert weights.tolist() == pytest.approx(expected)
    assert not weights.requires_grad


@pytest.mark.parametrize(("mode", "most"), [("token", 2.0), ("mask", 0.0), ("sequence", 2.0)])
def test_a_ratio_beyond_all_floats_is_capped_too(mode, most):
    logps = LogProbs(
        old=torch.tensor([-1.0]), rollout=torch.tensor([-101.0]), rollout_index=torch.tensor([0])
    )
    assert correction_weights(logps, mode).tolist() == [most]


def test_gap_metrics_by_hand():
    gap = [math.log(2.5), math.log(0.5), 0.0]
    rollout = torch.tensor([-1.0, -2.0, -3.0])

    metrics = gap_metrics(rollout + torch.tensor(gap), rollout)

    mean = sum(gap) / 3
    assert metrics == pytest.approx(
        {
            "logp_gap/mean_abs": (math.log(2.5) + math.log(2)) / 3,
            "logp_gap/mean": mean,
            "logp_gap/kl_k1": -mean,
            "logp_gap/kl_k3": (2.5 + 0.5 + 1.0 - 3 - 3 * mean) / 3,
            "logp_gap/effective_sample_size": (2 + 0.5 + 1) ** 2 / (3 * (4 + 0.25 + 1)),
            "logp_gap/clipped": 1 / 3,
        },
        rel=1e-5,
    )


def test_alarm_stops_after_three_bad_steps_in_a_row():
    alarm = GapAlarm()
    for figure in (0.3, 0.3, 0.01, 0.3, float("nan")):
        alarm.observe(figure)

    with pytest.raises(GapError, match=r"0\.300, nan, 0\.250 in the last 3 steps"):
        alarm.observe(0.25)
