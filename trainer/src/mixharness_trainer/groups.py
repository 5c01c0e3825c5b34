"""From finished rollouts to groups of one (task, harness) pair each. Advantages are not here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mixharness.tree import DEFAULT_PRUNING, Pruning, build_tree, prune
from mixharness.types import GroupKey, Rollout, RolloutGroup, TokenTree


@dataclass(frozen=True, slots=True)
class Grouped:
    """The groups of a batch, and why rollouts are in none of them."""

    groups: tuple[RolloutGroup, ...]
    dropped: dict[str, int]
    """Reason to number of rollouts: a failure kind, or `small_group`."""


def group_rollouts(
    rollouts: Iterable[Rollout], min_group_size: int, pruning: Pruning = DEFAULT_PRUNING
) -> Grouped:
    """Group usable rollouts by pair, in order of first appearance.

    What is excluded here is excluded from the baseline too (rule 6): infra and run failures,
    excessive forks, and groups smaller than `min_group_size`.
    """
    dropped: Counter[str] = Counter()
    members: dict[GroupKey, list[tuple[Rollout, TokenTree]]] = {}
    for rollout in rollouts:
        pruned = prune(rollout.calls, pruning)
        failure = pruned.failure if rollout.usable else rollout.failure
        if failure is not None:
            dropped[failure.kind] += 1
            continue
        tree = build_tree(rollout.calls, pruned)
        members.setdefault(rollout.key, []).append((rollout, tree))
    groups: list[RolloutGroup] = []
    for key, pairs in members.items():
        if len(pairs) < min_group_size:
            dropped["small_group"] += len(pairs)
            continue
        groups.append(RolloutGroup(key, tuple(r for r, _ in pairs), tuple(t for _, t in pairs)))
    return Grouped(tuple(groups), dict(dropped))
