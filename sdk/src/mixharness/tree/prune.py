"""Pruning: which calls of a rollout are trained, and why the others are not.

TOKENS_AND_TREES section 2, steps 2 to 4. Step 1 (a failed rollout is not used at all) belongs to
whoever holds the rollout; group-level rules (no contrast, staleness) do not live here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mixharness.tree.graph import CallGraph, build_graph
from mixharness.types import CallRole, Delivery, Failure, FailureKind, ModelCall

BranchCredit = Literal["exclude", "share"]
"""What calls of other roles than `main` get: nothing, or the rollout's advantage."""

CANCELLED = "cancelled"
UNDELIVERED = "undelivered"
SUPERSEDED = "superseded"
LOSING_CHAIN = "losing_chain"
EXCESSIVE_FORKS = FailureKind.EXCESSIVE_FORKS.value
ROLE = "role_"
"""Prefix of the reason of a call that was left out for its role, as in `role_subagent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The verdict on every call of a rollout: it is in `kept` or in `reasons`, never in both."""

    kept: frozenset[str]
    """Ids of the calls that are trained."""
    reasons: Mapping[str, str]
    """Call id to why it is not trained."""
    failure: Failure | None = None
    """`excessive_forks` drops the whole rollout."""


def prune(
    calls: Sequence[ModelCall],
    *,
    max_regenerations: int = 16,
    branch_credit: BranchCredit = "exclude",
) -> Pruned:
    """Decide which calls of one rollout are trained.

    Args:
        calls: all calls of the rollout.
        max_regenerations: superseded main-role siblings a rollout may have; more drop it.
        branch_credit: `exclude` trains main calls only (the paper), `share` live calls of any role.

    Raises:
        ValueError: the calls do not form a graph.
    """
    graph = build_graph(calls)
    superseded = _superseded(graph)
    regenerations = sum(graph.calls[call_id].role is CallRole.MAIN for call_id in superseded)
    if regenerations > max_regenerations:
        detail = f"{regenerations} superseded siblings, at most {max_regenerations} are allowed"
        return Pruned(
            kept=frozenset(),
            reasons=dict.fromkeys(graph.calls, EXCESSIVE_FORKS),
            failure=Failure(kind=FailureKind.EXCESSIVE_FORKS, detail=detail),
        )
    reasons = _dead(graph, superseded)
    reasons.update(dict.fromkeys(_losing(graph, reasons), LOSING_CHAIN))
    if branch_credit == "exclude":
        for call in graph.calls.values():
            if call.role is not CallRole.MAIN:
                reasons.setdefault(call.id, f"{ROLE}{call.role.value}")
    return Pruned(kept=frozenset(graph.calls.keys() - reasons.keys()), reasons=reasons)


def _superseded(graph: CallGraph) -> frozenset[str]:
    """Return calls nobody refers to whose sibling was continued."""
    return frozenset(
        call_id
        for siblings in graph.siblings().values()
        if any(graph.continued(call_id) for call_id in siblings)
        for call_id in siblings
        if not graph.continued(call_id)
    )


def _dead(graph: CallGraph, superseded: frozenset[str]) -> dict[str, str]:
    """Return the reason of each dead call. A continued answer was delivered, whatever is noted."""
    reasons: dict[str, str] = {}
    for call in graph.calls.values():
        if call.delivery is Delivery.CANCELLED:
            reasons[call.id] = CANCELLED
        elif call.delivery is not Delivery.DELIVERED and not graph.continued(call.id):
            reasons[call.id] = UNDELIVERED
        elif call.id in superseded:
            reasons[call.id] = SUPERSEDED
    return reasons


def _losing(graph: CallGraph, dead: Mapping[str, str]) -> set[str]:
    """Return the live main calls off the longest live chain of their (agent, epoch)."""
    lanes: dict[tuple[str, int], set[str]] = defaultdict(set)
    for call in graph.calls.values():
        if call.role is CallRole.MAIN and call.id not in dead:
            lanes[call.agent, graph.epochs[call.id]].add(call.id)
    return {call_id for live in lanes.values() for call_id in live - _longest_chain(graph, live)}


def _longest_chain(graph: CallGraph, live: set[str]) -> set[str]:
    """Return the chain with most calls; on a tie the one whose last answer came latest."""
    tips = [call_id for call_id in live if not live.intersection(graph.successors[call_id])]
    chains = [(tip, live & (graph.ancestors(tip) | {tip})) for tip in tips]

    def rank(chain: tuple[str, set[str]]) -> tuple[int, float, int]:
        tip = graph.calls[chain[0]]
        return len(chain[1]), tip.started_s + tip.duration_s, tip.index

    return max(chains, key=rank)[1]
