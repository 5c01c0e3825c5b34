"""Which pairs a step is made of."""

import random
from collections import Counter
from itertools import islice

import pytest

from mixharness import Limits
from mixharness.plugins import load_plugins
from mixharness.rollout.types import HarnessSlot
from mixharness.types import Task
from mixharness_trainer.composition import group_counts, problems, step_pairs, task_batches

TASKS = [Task(id=str(n), prompt="", verifier="exact_match") for n in range(12)]


@pytest.fixture
def slots():
    cls = load_plugins().get("harness", "agentloop")
    harness = cls(cls.config_type())

    def make(*settings):
        return [
            HarnessSlot(label=label, harness=harness, program=None, limits=Limits(), **keys)
            for label, keys in zip("abcd", settings, strict=False)
        ]

    return make


def counts_of(pairs):
    return dict(Counter(slot.label for _, slot in pairs))


@pytest.mark.parametrize(("count", "size"), [(6, 4), (5, 5), (7, 2), (3, 1)])
def test_batches_use_every_task_equally_and_none_twice_in_a_step(count, size):
    tasks, sizes = TASKS[:count], [size] * (3 * count)
    batches = list(task_batches(tasks, sizes=sizes, seed=1))
    assert all(len({task.id for task in batch}) == size for batch in batches)
    drawn = [task.id for batch in batches for task in batch]
    assert set(Counter(drawn).values()) == {3 * size}
    rounds = [drawn[start : start + count] for start in range(0, len(drawn), count)]
    assert all(len(set(each)) == count for each in rounds)
    assert batches == list(task_batches(tasks, sizes=sizes, seed=1))
    assert batches != list(task_batches(tasks, sizes=sizes, seed=2))


def test_by_default_every_task_is_tried_in_every_harness(slots):
    made = slots({}, {}, {})
    steps = list(step_pairs(TASKS, made, size=4, steps=3, seed=1))
    assert [len(pairs) for pairs in steps] == [12, 12, 12]
    for pairs, batch in zip(steps, task_batches(TASKS, sizes=[4] * 3, seed=1), strict=True):
        assert pairs == [(task, slot) for task in batch for slot in made]


def test_weights_share_out_the_groups_of_a_step(slots):
    made = slots({"weight": 3.0}, {}, {"weight": 0.0})
    for pairs in step_pairs(TASKS, made, size=4, steps=5, seed=1):
        assert counts_of(pairs) == {"a": 6, "b": 2}
        assert len({(task.id, slot.label) for task, slot in pairs}) == 8
        # The same tasks, as far as both have some: a task can be met in two harnesses.
        tasks = {slot.label: {t.id for t, s in pairs if s is slot} for slot in made[:2]}
        assert tasks["b"] <= tasks["a"]


def test_a_broken_share_is_right_on_average_and_the_sum_always(slots):
    made = slots({"weight": 1.0}, {"weight": 0.25}, {"weight": 2.75})
    rng = random.Random(0)
    drawn = [group_counts(made, 1, rng) for _ in range(4000)]
    assert {sum(counts) for counts in drawn} == {3}
    # Three groups by shares of 1/4, 1/16 and 11/16: 0.75, 0.1875 and 2.0625 a step.
    for column, expected in zip(zip(*drawn, strict=True), (0.75, 0.1875, 2.0625), strict=True):
        assert set(column) == {int(expected), int(expected) + 1}
        assert sum(column) / 4000 == pytest.approx(expected, abs=0.03)


def test_fixed_counts_stand_for_shares(slots):
    made = slots({"groups": 5}, {"groups": 0}, {"groups": 1}, {"groups": 3, "weight": 0.0})
    steps = list(step_pairs(TASKS, made, size=4, steps=50, seed=1))
    assert all(counts_of(pairs) == {"a": 5, "c": 1} for pairs in steps)
    assert len({t.id for pairs in steps for t, slot in pairs if slot.label == "c"}) == 12


def test_a_step_depends_on_seed_and_number_alone(slots):
    made = slots({"weight": 2.0}, {"weight": 0.7})
    steps = list(step_pairs(TASKS, made, size=3, steps=9, seed=1))
    # Another length of the run, and steps that nobody asked for before the seventh: as resumed.
    assert list(islice(step_pairs(TASKS, made, size=3, steps=20, seed=1), 6, 9)) == steps[6:]
    assert list(step_pairs(TASKS, made, size=3, steps=9, seed=2)) != steps


@pytest.mark.parametrize(
    ("settings", "size", "where", "message"),
    [
        (({"weight": 0.0}, {"groups": 0}), 4, "harness", "there is none to train in"),
        (({"groups": 2}, {}), 4, "harness.1.groups", "required: another harness fixes its own"),
        (({"groups": 2, "weight": 3.0}, {"groups": 1}), 4, "harness.0", "keep one of both"),
        (({"groups": 1}, {"groups": 13}), 4, "harness.1.groups", "13 is more than the 12 tasks"),
        (({}, {}), 13, "trainer.tasks_per_step", "13 is more than the 12 tasks to train on"),
        (({"weight": 3.0}, {}), 9, "trainer.tasks_per_step", "9 makes up to 14 groups in one"),
    ],
)
def test_what_cannot_be_mixed_is_said_before(slots, settings, size, where, message):
    ((path, text),) = problems(slots(*settings), size, len(TASKS))
    assert path == where
    assert message in text


def test_what_can_be_mixed_has_no_problem(slots):
    assert problems(slots({"groups": 12}, {"groups": 1}, {"weight": 0.0}), 99, 12) == []
    assert problems(slots({"weight": 3.0}, {}, {"groups": 0}), 8, 12) == []
