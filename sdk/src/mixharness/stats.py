"""Intervals for evals: paired, clustered by task, aware of seeds; pass@k and pass^k.

Used by eval, report and loop. Plain Python: no sampling, so the same scores always give the same
interval. Metrics of a training step are not computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

Scores = Mapping[str, Sequence[float]]
"""Task id to the scores of its rollouts; a task without scores is left out."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its two-sided confidence interval over `n` tasks.

    With a single task nothing is known about others: the interval is infinite.
    """

    mean: float
    low: float
    high: float
    n: int


def mean_interval(scores: Scores, *, confidence: float = 0.95) -> Interval:
    """Return the mean over tasks of each task's mean score; the task is the cluster.

    Raises:
        ValueError: no task has a score.
    """
    return _interval([fmean(values) for values in scores.values() if values], confidence)


def paired_difference(before: Scores, after: Scores, *, confidence: float = 0.95) -> Interval:
    """Return the mean over tasks of (mean after - mean before), by the paired t interval.

    Only tasks scored on both sides count; `n` says how many those are.

    Raises:
        ValueError: no task was scored on both sides.
    """
    return _interval(list(_differences(before, after).values()), confidence)


def paired_difference_over_seeds(
    before: Sequence[Scores], after: Sequence[Scores], *, confidence: float = 0.95
) -> Interval:
    """Return the paired difference for training runs that differ in their seed.

    Seeds and tasks are crossed: the variance of the mean is that over tasks plus that over seeds
    minus the residual both contain (the two-way cluster estimate of Cameron, Gelbach and Miller
    2011), with Satterthwaite's degrees of freedom. One seed alone tells nothing about others:
    its interval is over tasks only.

    Args:
        before: one mapping per seed.
        after: in the same order of seeds.
        confidence: probability of holding the true mean.

    Raises:
        ValueError: the numbers of seeds differ, or no task was scored on both sides in all seeds.
    """
    if len(before) != len(after) or not before:
        raise ValueError(f"one before and one after per seed, got {len(before)} and {len(after)}")
    per_seed = [_differences(b, a) for b, a in zip(before, after, strict=True)]
    tasks = sorted(set.intersection(*(set(differences) for differences in per_seed)))
    rows = [[differences[task] for task in tasks] for differences in per_seed]
    columns = [list(column) for column in zip(*rows, strict=True)]
    if len(rows) < 2 or len(columns) < 2:
        return _interval([fmean(column) for column in columns], confidence)
    return _crossed_interval(rows, columns, confidence)


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return the unbiased estimate that one of k samples passes (Chen et al. 2021, eq. 1).

    Raises:
        ValueError: not 0 <= num_passed <= num_samples, or k is not in [1, num_samples].
    """
    _check_counts(num_samples, num_passed, k)
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def pass_hat_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return the unbiased estimate that all of k samples pass (pass^k, Yao et al. 2024).

    Raises:
        ValueError: not 0 <= num_passed <= num_samples, or k is not in [1, num_samples].
    """
    _check_counts(num_samples, num_passed, k)
    return math.comb(num_passed, k) / math.comb(num_samples, k)


def t_quantile(probability: float, degrees: int) -> float:
    """Return Student's t quantile for a probability in [0.5, 1), to about 1e-9."""
    low, high = 0.0, 1.0
    while _t_cdf(high, degrees) < probability:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if _t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _differences(before: Scores, after: Scores) -> dict[str, float]:
    shared = [task for task in before if before[task] and after.get(task)]
    return {task: fmean(after[task]) - fmean(before[task]) for task in shared}


def _interval(values: Sequence[float], confidence: float) -> Interval:
    if not values:
        raise ValueError("no task has scores to compare")
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    quantile = t_quantile((1.0 + confidence) / 2.0, len(values) - 1)
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def _crossed_interval(
    rows: Sequence[Sequence[float]], columns: Sequence[Sequence[float]], confidence: float
) -> Interval:
    """Interval of the mean of a seeds x tasks table, both dimensions random."""
    seeds, tasks = len(rows), len(columns)
    seed_means, task_means = [fmean(row) for row in rows], [fmean(column) for column in columns]
    mean = fmean(seed_means)
    over_tasks, over_seeds = variance(task_means) / tasks, variance(seed_means) / seeds
    residual = sum(
        (rows[s][t] - seed_means[s] - task_means[t] + mean) ** 2
        for s in range(seeds)
        for t in range(tasks)
    ) / ((seeds - 1) * (tasks - 1) * seeds * tasks)
    total = max(over_tasks + over_seeds - residual, over_tasks, over_seeds)
    if total == 0.0:
        return Interval(mean, mean, mean, tasks)
    spread = over_tasks**2 / (tasks - 1) + over_seeds**2 / (seeds - 1)
    # A sum has at least the degrees of the part that has fewest; `total` may leave parts out.
    degrees = max(min(seeds, tasks) - 1, int(total**2 / spread))
    half = t_quantile((1.0 + confidence) / 2.0, degrees) * math.sqrt(total)
    return Interval(mean, mean - half, mean + half, tasks)


def _t_cdf(value: float, degrees: int) -> float:
    """Student's distribution for whole degrees of freedom (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan2(value, math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for power in range(2 + odd, degrees - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    area = math.sin(angle) * total
    return 0.5 + (angle + area) / math.pi if odd else 0.5 + area / 2.0


def _check_counts(num_samples: int, num_passed: int, k: int) -> None:
    if not 0 <= num_passed <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(
            f"need 0 <= passed <= samples and 1 <= k <= samples, got passed={num_passed}, "
            f"samples={num_samples}, k={k}"
        )
