"""What a run ends with: `summary.json` and `report.html`. Numbers per step are metrics.jsonl's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from mixharness.rollout.store import write_atomically
from mixharness.runs import load_rollouts, pruning_of
from mixharness.stats import paired_difference
from mixharness.tree.audit import audit
from mixharness.viewer import write_report
from mixharness_trainer.policy import Policy, optimizer_hash, weight_hash

Scores = dict[str, dict[str, list[float]]]
"""Harness label to task id to scores, as `runs.evaluate` returns them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the loop hands over when it is done."""

    before: Scores
    after: Scores
    steps: int
    wall_s: float


def write_summary(run_dir: Path, policy: Policy, outcome: Outcome) -> dict[str, Any]:
    """Write `summary.json` and `report.html` into the run folder; return the summary.

    `diff_low` and `diff_high` bound the 95 % interval of the difference, paired over tasks. The
    fidelity figures are over all rollouts of the run, evaluation included.
    """
    harnesses: dict[str, dict[str, Any]] = {}
    for label, figures in audit(load_rollouts(run_dir), pruning_of(run_dir)).items():
        harnesses[label] = {
            **_gain(outcome.before.get(label, {}), outcome.after.get(label, {})),
            "rollouts": figures.rollouts,
            "failures": sum(figures.failures.values()),
            "failures_by_kind": dict(figures.failures),
            "bridge_rate": figures.bridge_rate,
            "delivered_fraction": figures.delivered_fraction,
            "unexplained_loss": figures.unexplained_loss,
        }
    summary = {
        "harnesses": harnesses,
        "wall_s": round(outcome.wall_s, 1),
        "steps": outcome.steps,
        "weight_hash": weight_hash(policy),
        "optimizer_hash": optimizer_hash(policy),
    }
    write_atomically(run_dir / "summary.json", orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    write_report(run_dir)
    return summary


def _gain(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, Any]:
    """Compare the two evaluations; what was not measured is None."""
    diff = paired_difference(before, after) if before.keys() & after.keys() else None
    return {
        "before": _mean(before),
        "after": _mean(after),
        "diff": diff.mean if diff else None,
        "diff_low": diff.low if diff else None,
        "diff_high": diff.high if diff else None,
        "held_out_tasks": diff.n if diff else 0,
    }


def _mean(scores: dict[str, list[float]]) -> float | None:
    return fmean(fmean(values) for values in scores.values()) if scores else None
