"""The audit: how faithfully each harness was recorded (TOKENS_AND_TREES section 2, "Published").

Reads finished rollouts; changes nothing and writes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

from mixharness.tree.graph import build_graph
from mixharness.tree.prune import DEFAULT_PRUNING, Pruned, Pruning, prune
from mixharness.tree.tokens import build_tree, prompt_ids
from mixharness.types import (
    CallRole,
    FailureClass,
    GroupKey,
    ModelCall,
    NodeKind,
    Rollout,
    TokenTree,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessAudit:
    """One harness label's figures. Fractions are of sampled tokens unless said otherwise."""

    rollouts: int
    calls: int
    bridge_rate: float
    """Calls that continued a known history, among those that had one; 1.0 when none had."""
    delivered_fraction: float
    """Kept by pruning, of the rollouts without an infra or run failure; 1.0 when none sampled."""
    remainder: Mapping[str, float]
    """The fraction lost to each pruning reason."""
    unexplained_loss: float
    """The fraction neither trained nor explained; anything but 0 is a bug."""
    forks: Mapping[str, int]
    """Calls whose known history could not be continued, by reason."""
    segments_per_rollout: float
    """Trained leaves of the token tree: separate sequences a trainer without trees would need."""
    group_common_tokens: float
    """Tokens that the first prompts of a group share, mean over groups of two or more."""
    failures: Mapping[str, int]
    """Rollouts by kind of failure, those dropped for excessive forks included."""
    logp_gap: float | None = None
    """Mean |log π_trainer - log π_rollout| over the steps of training; None without training."""


@dataclass(frozen=True, slots=True)
class _Assembled:
    rollout: Rollout
    pruned: Pruned
    tree: TokenTree


def audit(
    rollouts: Sequence[Rollout], pruning: Pruning = DEFAULT_PRUNING
) -> dict[str, HarnessAudit]:
    """Return the audit of each harness label, in alphabetical order.

    Args:
        rollouts: of one run, failed ones too.
        pruning: the run's own, or what would be kept is not what was trained.
    """
    by_label: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        by_label[rollout.key.harness].append(rollout)
    return {label: _audit_one(by_label[label], pruning) for label in sorted(by_label)}


def _audit_one(rollouts: Sequence[Rollout], pruning: Pruning) -> HarnessAudit:
    sound = [r for r in rollouts if r.failure is None or not _dropped(r.failure.failure_class)]
    assembled = [_assemble(rollout, pruning) for rollout in sound]
    kept = [each for each in assembled if each.pruned.failure is None]
    failures = Counter(r.failure.kind.value for r in rollouts if r.failure)
    failures.update(each.pruned.failure.kind.value for each in assembled if each.pruned.failure)
    sampled = sum(len(call.sampled_ids) for each in kept for call in each.rollout.calls)
    trained = sum(each.tree.trained_tokens for each in kept)
    lost = _lost_tokens([each.tree for each in kept])
    segments = [_segments(each.tree) for each in kept]
    return HarnessAudit(
        rollouts=len(rollouts),
        calls=sum(len(rollout.calls) for rollout in rollouts),
        bridge_rate=_bridge_rate([rollout.calls for rollout in rollouts]),
        delivered_fraction=trained / sampled if sampled else 1.0,
        remainder={reason: lost[reason] / sampled for reason in sorted(lost)},
        unexplained_loss=(sampled - trained - lost.total()) / sampled if sampled else 0.0,
        forks=Counter(call.fork for r in rollouts for call in r.calls if call.fork),
        segments_per_rollout=fmean(segments) if segments else 0.0,
        group_common_tokens=_group_common_tokens(sound),
        failures=failures,
    )


def _dropped(failure_class: FailureClass) -> bool:
    return failure_class in (FailureClass.INFRA, FailureClass.RUN)


def _assemble(rollout: Rollout, pruning: Pruning) -> _Assembled:
    pruned = prune(rollout.calls, pruning)
    return _Assembled(rollout, pruned, build_tree(rollout.calls, pruned))


def _lost_tokens(trees: Sequence[TokenTree]) -> Counter[str]:
    """Count the sampled tokens that are not trained by their reason."""
    lost: Counter[str] = Counter()
    for tree in trees:
        for node in tree.nodes:
            if node.kind is NodeKind.SAMPLED and not node.trained and node.reason:
                lost[node.reason] += len(node.ids)
    return lost


def _bridge_rate(histories: Sequence[Sequence[ModelCall]]) -> float:
    """Leave out what has no history to continue: auxiliary calls and a repeated first request."""
    bridged = due = 0
    for calls in histories:
        graph = build_graph(calls)
        seen: set[tuple[str, CallRole, int]] = set()
        for call in graph.calls.values():
            lane = (call.agent, call.role, graph.epochs[call.id])
            has_history = call.parent_call is not None or bool(call.fork)
            if lane in seen and has_history and call.role is not CallRole.AUXILIARY:
                due += 1
                bridged += not call.fork
            if call.sampled_ids:
                seen.add(lane)
    return bridged / due if due else 1.0


def _segments(tree: TokenTree) -> int:
    """Count trained nodes without a trained node below."""
    has_below = [False] * len(tree.nodes)
    segments = 0
    for index in reversed(range(len(tree.nodes))):
        node = tree.nodes[index]
        segments += node.trained and not has_below[index]
        if node.parent >= 0 and (node.trained or has_below[index]):
            has_below[node.parent] = True
    return segments


def _group_common_tokens(rollouts: Sequence[Rollout]) -> float:
    prompts: dict[GroupKey, list[tuple[int, ...]]] = defaultdict(list)
    for rollout in rollouts:
        main = [call for call in rollout.calls if call.role is CallRole.MAIN]
        if main:
            first = min(main, key=lambda call: call.index)
            prompts[rollout.key].append(prompt_ids(rollout.calls, first.id))
    common = [_common_prefix(group) for group in prompts.values() if len(group) > 1]
    return fmean(common) if common else 0.0


def _common_prefix(sequences: Sequence[tuple[int, ...]]) -> int:
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
