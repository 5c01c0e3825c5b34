"""Fresh groups in place of those that teach nothing, in the same step and harness.

What a step begins with is composition.py's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixharness.optimizer import Optimizer
from mixharness.runs import Pair
from mixharness.types import Rollout, RolloutGroup, Task
from mixharness_trainer.groups import Grouped

Collected = tuple[Sequence[Rollout], Grouped]
Collect = Callable[[Sequence[Pair], str], Awaitable[Collected]]
"""Runs whole groups, given their pairs and the stage they are for."""
NO_CONTRAST = "no_contrast"
"""Why rollouts of a replaced group are in none, in `Grouped.dropped`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """How groups without any advantage are replaced (TOKENS_AND_TREES section 5)."""

    rounds: int
    """Most times that groups are drawn in place of others; 0: never."""
    optimizer: Optimizer[Any]
    tasks: Sequence[Task]
    seed: int


async def collect_step(
    plan: Resampling, pairs: Sequence[Pair], stage: str, collect: Collect
) -> Collected:
    """Collect a step's groups; in each round replace those without any advantage.

    A fresh group is of another task in the same harness, so that the mix stays as it was, and it
    stays whatever it scores, unless a further round replaces it. Which tasks are drawn depends on
    the seed, the stage and the rewards. A critic has use for every group: nothing is replaced.

    Returns:
        All rollouts, those of replaced groups too, and the groups to train on.
    """
    rollouts, grouped = await collect(pairs, stage)
    tried = list(pairs)
    rounds = plan.rounds if plan.optimizer.critic is None else 0
    for number in range(1, rounds + 1):
        dull = [group for group in grouped.groups if not _teaches(group, plan.optimizer)]
        wanted = Counter(group.key.harness for group in dull)
        name = f"{stage}-fresh-{number}"
        fresh = _fresh(plan.tasks, tried, wanted, random.Random(f"{plan.seed}/{name}"))
        if not fresh:
            break
        more, found = await collect(fresh, name)
        tried += fresh
        rollouts = [*rollouts, *more]
        grouped = _replaced(grouped, dull, found)
    return rollouts, grouped


def _teaches(group: RolloutGroup, optimizer: Optimizer[Any]) -> bool:
    return any(any(row) for row in optimizer.advantages(group))


def _fresh(
    tasks: Sequence[Task], tried: Sequence[Pair], wanted: Mapping[str, int], rng: random.Random
) -> list[Pair]:
    """Return as many pairs in each harness as are wanted, or as there are tasks left for it."""
    slots = {slot.label: slot for _, slot in tried}
    fresh: list[Pair] = []
    for label, count in sorted(wanted.items()):
        seen = {task.id for task, slot in tried if slot.label == label}
        left = [task for task in tasks if task.id not in seen]
        fresh += [(task, slots[label]) for task in rng.sample(left, min(count, len(left)))]
    return fresh


def _replaced(grouped: Grouped, dull: Sequence[RolloutGroup], found: Grouped) -> Grouped:
    """Put each group that was found in the place of one of its harness."""
    groups = {group.key: group for group in grouped.groups}
    dropped = Counter(grouped.dropped) + Counter(found.dropped)
    waiting = list(dull)
    for group in found.groups:
        place = next(n for n, old in enumerate(waiting) if old.key.harness == group.key.harness)
        old = groups.pop(waiting.pop(place).key)
        dropped[NO_CONTRAST] += len(old.rollouts)
        groups[group.key] = group
    return Grouped(tuple(groups.values()), dict(dropped))
