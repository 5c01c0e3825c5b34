"""Kept against excluded rollouts: what says whether excluding biases what is learned.

Who is excluded is decided elsewhere (ARCHITECTURE section 7); nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from mixharness.rollout.refill import kept
from mixharness.tree.prune import DEFAULT_PRUNING, Pruning
from mixharness.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some rollouts of a harness: how many, and means over them; None when there are none."""

    rollouts: int
    reward: float | None
    """Over those with a score; an infrastructure failure has none."""
    calls: float | None
    tokens: float | None
    """Sampled ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """What was kept and what was excluded in one harness."""

    kept: Share
    excluded: Share
    """Of loss and baseline; attempts that were repeated count here too."""
    retried: int
    """Of the excluded: attempts that were repeated."""
    refilled: int
    """Fresh rollouts drawn in place of excluded ones."""


def exclusions(
    rollouts: Iterable[Rollout],
    retried: Iterable[Rollout] = (),
    pruning: Pruning = DEFAULT_PRUNING,
) -> dict[str, Exclusion]:
    """Return the comparison for each harness label, in alphabetical order.

    Args:
        rollouts: of a run, refills included.
        retried: attempts that were repeated, see `runs.load_set_aside`.
        pruning: the run's; what it drops is excluded.
    """
    every, repeated = list(rollouts), list(retried)
    labels = sorted({rollout.key.harness for rollout in every})
    return {label: _compare(label, every, repeated, pruning) for label in labels}


def _compare(
    label: str, rollouts: Sequence[Rollout], retried: Sequence[Rollout], pruning: Pruning
) -> Exclusion:
    mine = [rollout for rollout in rollouts if rollout.key.harness == label]
    repeated = [rollout for rollout in retried if rollout.key.harness == label]
    sides: dict[bool, list[Rollout]] = {True: [], False: repeated[:]}
    for rollout in mine:
        sides[kept(rollout, pruning)].append(rollout)
    return Exclusion(
        kept=_share(sides[True]),
        excluded=_share(sides[False]),
        retried=len(repeated),
        refilled=sum(rollout.refill > 0 for rollout in mine),
    )


def _share(rollouts: Sequence[Rollout]) -> Share:
    def mean(of: Callable[[Rollout], float]) -> float | None:
        return fmean(map(of, rollouts)) if rollouts else None

    rewards = [rollout.score.value for rollout in rollouts if rollout.score]
    return Share(
        rollouts=len(rollouts),
        reward=fmean(rewards) if rewards else None,
        calls=mean(lambda rollout: len(rollout.calls)),
        tokens=mean(lambda rollout: sum(len(call.sampled_ids) for call in rollout.calls)),
    )
