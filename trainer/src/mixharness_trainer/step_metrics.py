"""The figures of one step that come from rollouts. Those of the update come from update.py."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from mixharness.rollout.types import HarnessSlot
from mixharness.types import Rollout, RolloutGroup
from mixharness_trainer.groups import Grouped

CONTRAST = 1e-6
"""Rewards of a group that differ by less teach nothing."""


def step_metrics(
    slots: Sequence[HarnessSlot], rollouts: Sequence[Rollout], grouped: Grouped
) -> dict[str, Any]:
    """Return reward, contrast and failures per harness label.

    `contrast/<label>` is the share of that harness's groups whose rewards differ; where it is 0,
    `contrast_note/<label>` says why.
    """
    calls = sum(len(rollout.calls) for rollout in rollouts)
    metrics: dict[str, Any] = {"rollouts": len(rollouts), "calls": calls}
    by_label: dict[str, list[RolloutGroup]] = defaultdict(list)
    for group in grouped.groups:
        by_label[group.key.harness].append(group)
    for slot in slots:
        label, groups = slot.label, by_label[slot.label]
        mine = [r for r in rollouts if r.key.harness == label]
        usable = [r.reward for r in mine if r.usable]
        contrasts = [max(g.rewards) - min(g.rewards) > CONTRAST for g in groups]
        metrics[f"reward/{label}"] = fmean(usable) if usable else None
        metrics[f"contrast/{label}"] = fmean(contrasts) if contrasts else 0.0
        metrics[f"failures/{label}"] = sum(r.failure is not None for r in mine)
        if not any(contrasts):
            metrics[f"contrast_note/{label}"] = _why_no_contrast(groups)
    kinds = Counter(str(r.failure.kind) for r in rollouts if r.failure)
    return metrics | {"failures_by_kind": dict(kinds), "dropped": grouped.dropped}


def _why_no_contrast(groups: Sequence[RolloutGroup]) -> str:
    if not groups:
        return "no usable group: see failures_by_kind and dropped"
    means = ", ".join(f"{fmean(group.rewards):.2f}" for group in groups)
    return f"all {len(groups)} groups are unanimous, at rewards {means}"
