"""Which (task, harness) pairs a step trains on. Running them is runs.py's, one group a pair.

The pairs of step n depend on the run file, its seed and n alone, so that a resumed run goes on with
the same ones, whatever happened in the steps before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from mixharness.rollout.types import HarnessSlot
from mixharness.runs import Pair
from mixharness.types import Task

Problem = tuple[str, str]


def step_pairs(
    tasks: Sequence[Task], slots: Sequence[HarnessSlot], *, size: int, steps: int, seed: int
) -> Iterator[list[Pair]]:
    """Yield each step's pairs, none twice in a step, ordered by task and then by harness.

    Every harness that is trained gets `size` tasks, the same for all, unless the run file fixes its
    `groups` or the harnesses differ in `weight` (`group_counts`). A harness with fewer groups than
    another takes some of the other's tasks, drawn anew in each step.

    Source: ClawGym II (arXiv:2608.16798), mixing harnesses: the unit of a batch is the pair.

    Args:
        tasks: those to train on; see `problems` for how many are needed.
        slots: the run's.
        size: tasks per step.
        steps: how many steps.
        seed: decides all that is random.
    """
    rngs = [random.Random(f"{seed}/{step}") for step in range(1, steps + 1)]
    counts = [group_counts(slots, size, rng) for rng in rngs]
    batches = task_batches(tasks, sizes=map(max, counts), seed=seed)
    for rng, of_slots, drawn in zip(rngs, counts, batches, strict=True):
        chosen = [set(rng.sample(range(len(drawn)), count)) for count in of_slots]
        yield [
            (task, slot)
            for place, task in enumerate(drawn)
            for slot, places in zip(slots, chosen, strict=True)
            if place in places
        ]


def group_counts(slots: Sequence[HarnessSlot], size: int, rng: random.Random) -> list[int]:
    """Return the number of a step's groups in each harness.

    By weight: `size` times the number of trained harnesses are shared out. What is no whole number
    is rounded at random, one draw for all: the sum is always the same, each count is off by less
    than 1, and right on average.
    """
    if fixed := _fixed(slots):
        return fixed
    shares = _shares(slots, size)
    offset = Fraction(rng.random())
    marks = [0, *(math.floor(end + offset) for end in accumulate(shares))]
    return [after - before for before, after in pairwise(marks)]


def task_batches(tasks: Sequence[Task], *, sizes: Iterable[int], seed: int) -> Iterator[list[Task]]:
    """Yield each step's tasks, none twice in a step: a new order of all each time all are used.

    Args:
        tasks: at least as many as the largest size.
        sizes: tasks of each step.
        seed: decides the orders.
    """
    rng = random.Random(seed)
    queue: list[Task] = []
    for size in sizes:
        batch: list[Task] = []
        while len(batch) < size:
            if not queue:
                order = rng.sample(tasks, len(tasks))
                # Taken from the end: what this step has already comes last.
                queue = sorted(order, key=lambda task: task not in batch)
            batch.append(queue.pop())
        yield batch


def problems(slots: Sequence[HarnessSlot], size: int, num_tasks: int) -> list[Problem]:
    """Return what keeps the harnesses from being mixed as the run file says."""
    trained = [slot for slot in slots if slot.trained]
    if not trained:
        return [("harness", "each has weight = 0 or groups = 0: there is none to train in")]
    fixed = any(slot.groups for slot in trained)
    found: list[Problem] = []
    for number, slot in enumerate(slots):
        where = f"harness.{number}"
        if slot.groups is not None and slot.weight not in (0, 1):
            found.append((where, "`groups` fixes what `weight` would share out; keep one of both"))
        elif fixed and slot.trained and slot.groups is None:
            found.append((f"{where}.groups", "required: another harness fixes its own"))
        elif fixed and slot.trained and (slot.groups or 0) > num_tasks:
            message = f"{slot.groups} is more than the {num_tasks} tasks to train on"
            found.append((f"{where}.groups", message))
    if found or fixed:
        return found
    most = math.ceil(max(_shares(slots, size)))
    if most <= num_tasks:
        return []
    by_weight = f" makes up to {most} groups in one harness, by its weight: that" * (most > size)
    message = f"{size}{by_weight} is more than the {num_tasks} tasks to train on"
    return [("trainer.tasks_per_step", message)]


def _fixed(slots: Sequence[HarnessSlot]) -> list[int]:
    """Return the groups that the run file fixes; empty when it fixes none."""
    if not any(slot.groups for slot in slots if slot.trained):
        return []
    return [slot.groups or 0 if slot.trained else 0 for slot in slots]


def _shares(slots: Sequence[HarnessSlot], size: int) -> list[Fraction]:
    """Return the expected number of groups in each harness."""
    weights = [Fraction(slot.weight) if slot.trained else Fraction(0) for slot in slots]
    total = size * sum(1 for weight in weights if weight)
    return [total * weight / sum(weights) for weight in weights]
