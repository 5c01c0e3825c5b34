import math
import random

import pytest

from mixharness.stats import (
    Interval,
    mean_interval,
    paired_difference,
    paired_difference_over_seeds,
    pass_at_k,
    pass_hat_k,
    t_quantile,
)


def test_paired_difference_by_hand():
    """Task differences 0.5, 0, 1, 0.5: mean 0.5, sd 0.4082, se 0.2041, t(3) = 3.1824."""
    before = {"a": [0.0, 1.0], "b": [1.0], "c": [0.0], "d": [0.5, 0.0, 1.0]}
    after = {"a": [1.0], "b": [1.0, 1.0], "c": [1.0], "d": [1.0]}
    interval = paired_difference(before, after)
    assert interval.mean == pytest.approx(0.5)
    assert interval.low == pytest.approx(0.5 - 0.649614, abs=1e-6)
    assert interval.high == pytest.approx(0.5 + 0.649614, abs=1e-6)
    assert interval.n == 4


def test_tasks_scored_on_one_side_only_do_not_count():
    before = {"a": [0.0], "b": [0.0], "c": [0.0]}
    assert paired_difference(before, {"a": [1.0], "b": [1.0], "c": []}).n == 2


def test_one_task_tells_nothing_about_others():
    assert mean_interval({"a": [0.5, 1.0]}) == Interval(0.75, -math.inf, math.inf, 1)


def test_no_shared_task_is_an_error():
    with pytest.raises(ValueError, match="no task"):
        paired_difference({"a": [1.0]}, {"b": [1.0]})


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.706205), (2, 4.302653), (9, 2.262157), (120, 1.979930)]
)
def test_t_quantiles_equal_the_printed_tables(degrees: int, expected: float):
    assert t_quantile(0.975, degrees) == pytest.approx(expected, abs=1e-6)


def test_seeds_by_hand():
    """Rows (seeds) 0.2 0.4 and 0.6 0.8: no residual, so variances just add: 0.04 + 0.01."""
    zero = {"a": [0.0], "b": [0.0]}
    after = [{"a": [0.2], "b": [0.4]}, {"a": [0.6], "b": [0.8]}]
    interval = paired_difference_over_seeds([zero, zero], after)
    assert interval.mean == pytest.approx(0.5)
    # Satterthwaite: 0.05² / (0.04² + 0.01²) = 1.47 degrees, taken as 1.
    assert interval.high - interval.mean == pytest.approx(12.706205 * math.sqrt(0.05), abs=1e-5)


def test_seeds_that_differ_most_leave_as_many_degrees_as_seeds_can():
    """Seeds 0, 1 and 2 whose tasks differ by chance: 2 degrees, not 1.99 cut down to 1."""
    noise = [[0.1, -0.1, 0.0], [-0.1, 0.0, 0.1], [0.1, 0.0, -0.1]]
    after = [{str(t): [s + e] for t, e in enumerate(row)} for s, row in enumerate(noise)]
    interval = paired_difference_over_seeds([{task: [0.0] for task in "012"}] * 3, after)
    assert interval.high - interval.mean == pytest.approx(4.302653 / math.sqrt(3), abs=1e-5)


def test_one_seed_is_the_plain_paired_interval():
    before, after = {"a": [0.0], "b": [0.5]}, {"a": [1.0], "b": [0.5]}
    assert paired_difference_over_seeds([before], [after]) == paired_difference(before, after)


def test_pass_estimators_by_hand():
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)  # 1 - C(3,2)/C(4,2)
    assert pass_hat_k(4, 2, 2) == pytest.approx(1 / 6)  # C(2,2)/C(4,2)
    assert (pass_at_k(3, 3, 3), pass_hat_k(3, 2, 3)) == (1.0, 0.0)
    with pytest.raises(ValueError, match="k=5"):
        pass_at_k(4, 1, 5)


def test_paired_interval_covers_the_truth_as_often_as_it_says():
    """Tasks differ in difficulty and gain; four 0/1 rollouts each. Expect 95 % within noise."""
    rng = random.Random(7)
    covered = 0
    for _ in range(600):
        before, after = {}, {}
        for task in range(30):
            easy, gain = rng.uniform(0.1, 0.5), rng.uniform(0.0, 0.4)  # true mean gain 0.2
            before[str(task)] = [float(rng.random() < easy) for _ in range(4)]
            after[str(task)] = [float(rng.random() < easy + gain) for _ in range(4)]
        interval = paired_difference(before, after)
        covered += interval.low <= 0.2 <= interval.high
    assert 0.93 <= covered / 600 <= 0.97


def test_seed_aware_interval_covers_where_the_naive_one_does_not():
    """Each seed shifts all its tasks alike: pooling over tasks then claims far too much."""
    rng = random.Random(11)
    aware = naive = 0
    for _ in range(300):
        befores, afters = [], []
        for _seed in range(4):
            shift = rng.gauss(0.2, 0.1)
            befores.append({str(task): [0.0] for task in range(20)})
            afters.append({str(task): [shift + rng.gauss(0.0, 0.1)] for task in range(20)})
        interval = paired_difference_over_seeds(befores, afters)
        pooled = paired_difference(befores[0], {t: [a[t][0] for a in afters] for t in befores[0]})
        aware += interval.low <= 0.2 <= interval.high
        naive += pooled.low <= 0.2 <= pooled.high
    assert aware / 300 >= 0.92
    assert naive / 300 <= 0.75
