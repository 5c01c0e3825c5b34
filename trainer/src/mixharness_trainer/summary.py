"""What a run ends with: `summary.json` and `report.html`. Numbers per step are metrics.jsonl's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from mixharness.exclusions import exclusions
from mixharness.rollout.store import write_atomically
from mixharness.runs import load_rollouts, load_set_aside, pruning_of
from mixharness.stats import paired_difference
from mixharness.tree.audit import audit
from mixharness.types import FailureClass, FailureKind
from mixharness.viewer import write_report
from mixharness_trainer.policy import Policy, optimizer_hash, weight_hash

Scores = dict[str, dict[str, list[float]]]
"""Harness label to task id to scores, as `runs.evaluate` returns them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the loop hands over when it is done."""

    before: Scores
    after: Scores
    history: Sequence[Mapping[str, Any]]
    """The metrics of each step."""
    wall_s: float


def write_summary(run_dir: Path, policy: Policy, outcome: Outcome) -> dict[str, Any]:
    """Write `summary.json` and `report.html` into the run folder; return the summary.

    `diff_low` and `diff_high` bound the 95 % interval of the difference, paired over tasks. The
    fidelity figures, and `kept` against `excluded`, are over all rollouts of the run, evaluation
    included. `grad_norm` and `gradient_cosine` are means over the steps, as in `update`. A harness
    is `trained` when the loop collected rollouts in it: not when it was left out.
    """
    rollouts, pruning = load_rollouts(run_dir), pruning_of(run_dir)
    excluding = exclusions(rollouts, load_set_aside(run_dir), pruning)
    harnesses: dict[str, dict[str, Any]] = {}
    for label, figures in audit(rollouts, pruning).items():
        harnesses[label] = {
            **_gain(outcome.before.get(label, {}), outcome.after.get(label, {})),
            "trained": any(f"reward/{label}" in step for step in outcome.history),
            "rollouts": figures.rollouts,
            "failures": sum(figures.failures.values()),
            "failures_by_kind": dict(figures.failures),
            "infra_failures": _of_infra(figures.failures),
            **asdict(excluding[label]),
            "bridge_rate": figures.bridge_rate,
            "delivered_fraction": figures.delivered_fraction,
            "unexplained_loss": figures.unexplained_loss,
            "groups": int(sum(_series(outcome, f"groups/{label}"))),
            "groups_with_contrast": int(sum(_series(outcome, f"groups_with_contrast/{label}"))),
            "stale_groups": int(sum(_series(outcome, f"stale_groups/{label}"))),
            "tokens": int(sum(_series(outcome, f"tokens/{label}"))),
            "grad_norm": _mean_of(_series(outcome, f"grad_norm/{label}")),
        }
    summary = {
        "harnesses": harnesses,
        "wall_s": round(outcome.wall_s, 1),
        "steps": len(outcome.history),
        "stale_groups": int(sum(_series(outcome, "stale_groups"))),
        "grad_norm": _mean_of(_series(outcome, "grad_norm")),
        "gradient_cosine": _cosines(outcome),
        "weight_hash": weight_hash(policy),
        "optimizer_hash": optimizer_hash(policy),
    }
    write_atomically(run_dir / "summary.json", orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    write_report(run_dir)
    return summary


def _of_infra(failures: Mapping[str, int]) -> int:
    """Count rollouts that ended with an infrastructure failure, after all retries."""
    infra = FailureClass.INFRA
    return sum(n for kind, n in failures.items() if FailureKind(kind).failure_class is infra)


def _series(outcome: Outcome, key: str) -> list[float]:
    """Return the finite values of a figure, step by step."""
    values = (step.get(key) for step in outcome.history)
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def _cosines(outcome: Outcome) -> dict[str, float]:
    """Return the mean cosine of each pair of harnesses, by `<harness>/<harness>`."""
    prefix = "gradient_cosine/"
    keys = sorted({key for step in outcome.history for key in step if key.startswith(prefix)})
    return {key.removeprefix(prefix): fmean(_series(outcome, key)) for key in keys}


def _mean_of(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


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
