"""The contract of trackers."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from mixharness.testing.contracts.component import ComponentContract
from mixharness.tracker import Tracker
from mixharness.types import GroupKey, Rollout, Score


class TrackerContract(ComponentContract):
    """A tracker takes what a run gives it and changes none of it."""

    def test_log_before_start_raises(self, component: Tracker[Any]) -> None:
        """A lost metric is not silent."""
        with pytest.raises(RuntimeError):
            component.log({"loss": 1.0}, 0)

    def test_metrics_are_taken_unchanged(self, component: Tracker[Any], tmp_path: Path) -> None:
        """Nested, odd and missing numbers crash nothing."""
        metrics = {"loss": math.nan, "top": math.inf, "harness": {"echo": {"reward": 0.5}}}
        before = copy.deepcopy(metrics)
        component.start(tmp_path, {"seed": 0})
        component.log(metrics, 1)
        assert repr(metrics) == repr(before)  # NaN is unequal to itself
        component.finish()

    def test_rollouts_are_taken(self, component: Tracker[Any], tmp_path: Path) -> None:
        """A finished rollout is accepted."""
        component.start(tmp_path, {})
        rollout = Rollout(id="r", key=GroupKey("t", "echo"), calls=(), score=Score(value=0.5))
        component.log_rollout(rollout, 1)
        component.finish()

    def test_finish_may_be_called_twice(self, component: Tracker[Any], tmp_path: Path) -> None:
        """Every path of a run may end it."""
        component.start(tmp_path, {})
        component.finish()
        component.finish()
