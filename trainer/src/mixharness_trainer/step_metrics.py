"""The figures of one step that come from rollouts. Those of the update come from update.py."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from mixharness.rollout.types import HarnessSlot
from mixharness.types import Rollout, RolloutGroup
from mixharness_trainer.groups import Grouped


def step_metrics(
    slots: Sequence[HarnessSlot],
    rollouts: Sequence[Rollout],
    grouped: Grouped,
    learned: Mapping[str, Any],
) -> dict[str, Any]:
    """Return reward, contrast and failures per harness label.

    `contrast/<label>` is the share of that harness's groups that teach anything; where it is 0,
    `contrast_note/<label>` says why. A harness without a rollout in this step (it is left out, or
    drew no group) has no figures.

    Args:
        slots: the run's.
        rollouts: all of the step.
        grouped: those that the update saw.
        learned: the update's figures; empty when there was none.
    """
    calls = sum(len(rollout.calls) for rollout in rollouts)
    refilled = sum(rollout.refill > 0 for rollout in rollouts)
    metrics: dict[str, Any] = {"rollouts": len(rollouts), "refilled": refilled, "calls": calls}
    by_label: dict[str, list[RolloutGroup]] = defaultdict(list)
    for group in grouped.groups:
        by_label[group.key.harness].append(group)
    for slot in slots:
        label, groups = slot.label, by_label[slot.label]
        mine = [r for r in rollouts if r.key.harness == label]
        if not mine:
            continue
        usable = [r.reward for r in mine if r.usable]
        with_contrast = learned.get(f"groups_with_contrast/{label}", 0)
        metrics[f"reward/{label}"] = fmean(usable) if usable else None
        metrics[f"contrast/{label}"] = with_contrast / len(groups) if groups else 0.0
        metrics[f"failures/{label}"] = sum(r.failure is not None for r in mine)
        if not with_contrast:
            metrics[f"contrast_note/{label}"] = _why_no_contrast(groups)
    kinds = Counter(str(r.failure.kind) for r in rollouts if r.failure)
    return metrics | {"failures_by_kind": dict(kinds), "dropped": grouped.dropped}


def _why_no_contrast(groups: Sequence[RolloutGroup]) -> str:
    if not groups:
        return "no usable group: see failures_by_kind and dropped"
    means = ", ".join(f"{fmean(group.rewards):.2f}" for group in groups)
    return f"all {len(groups)} groups are unanimous, at rewards {means}"
