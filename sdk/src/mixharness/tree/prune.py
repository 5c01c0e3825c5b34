"""Pruning: which calls of a rollout are trained, and why the others are not.

TOKENS_AND_TREES section 2, steps 2 to 4. Step 1 (a failed rollout is not used at all) belongs to
whoever holds the rollout; group-level rules (no contrast, staleness) do not live here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixharness.tree.graph import CallGraph, build_graph
from mixharness.types import CallRole, Delivery, Failure, FailureKind, ModelCall

CANCELLED = "cancelled"
UNDELIVERED = "undelivered"
SUPERSEDED = "superseded"
LOSING_CHAIN = "losing_chain"
EXCESSIVE_FORKS = FailureKind.EXCESSIVE_FORKS.value
ROLE = "role_"
"""Prefix of the reason of a call that was left out for its role, as in `role_subagent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How calls are chosen; the defaults are the paper's."""

    branch_credit: float = 0.0
    """Share of the rollout's advantage that live calls of other roles than `main` are trained
    with, in [0, 1]; 0 leaves them out."""
    max_regenerations: int = 16
    """Superseded main-role siblings a rollout may have; more drop it."""


DEFAULT_PRUNING = Pruning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The verdict on every call of a rollout: it has a credit or a reason, never both."""

    credits: Mapping[str, float]
    """Id of a call that is trained to its share of the rollout's advantage, in (0, 1]."""
    reasons: Mapping[str, str]
    """Call id to why it is not trained."""
    failure: Failure | None = None
    """`excessive_forks` drops the whole rollout."""

    @property
    def kept(self) -> frozenset[str]:
        """Return the ids of the calls that are trained."""
        return frozenset(self.credits)


def prune(calls: Sequence[ModelCall], pruning: Pruning = DEFAULT_PRUNING) -> Pruned:
    """Decide which calls of one rollout are trained, and with how much of its advantage.

    Args:
        calls: all calls of the rollout.
        pruning: the run file's say.

    Raises:
        ValueError: the calls do not form a graph.
    """
    graph = build_graph(calls)
    superseded = _superseded(graph)
    regenerations = sum(graph.calls[call_id].role is CallRole.MAIN for call_id in superseded)
    if regenerations > pruning.max_regenerations:
        allowed = pruning.max_regenerations
        detail = f"{regenerations} superseded siblings, at most {allowed} are allowed"
        return Pruned(
            credits={},
            reasons=dict.fromkeys(graph.calls, EXCESSIVE_FORKS),
            failure=Failure(kind=FailureKind.EXCESSIVE_FORKS, detail=detail),
        )
    reasons = _dead(graph, superseded)
    reasons.update(dict.fromkeys(_losing(graph, reasons), LOSING_CHAIN))
    credits: dict[str, float] = {}
    for call in graph.calls.values():
        credit = 1.0 if call.role is CallRole.MAIN else pruning.branch_credit
        if not credit:
            reasons.setdefault(call.id, f"{ROLE}{call.role.value}")
        elif call.id not in reasons:
            credits[call.id] = credit
    return Pruned(credits=credits, reasons=reasons)


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
    """Return the live calls off the longest live chain of their (agent, epoch).

    Sub-agents of one name may be several conversations; only chains of one beginning compete.
    """
    lanes: dict[tuple[str, int, str], set[str]] = defaultdict(set)
    beginnings: dict[str, str] = {}
    for call in graph.calls.values():
        previous = graph.predecessor(call.id)
        beginnings[call.id] = beginnings[previous] if previous else call.id
        if call.id in dead or call.role not in (CallRole.MAIN, CallRole.SUBAGENT):
            continue
        beginning = "" if call.role is CallRole.MAIN else beginnings[call.id]
        lanes[call.agent, graph.epochs[call.id], beginning].add(call.id)
    return {call_id for live in lanes.values() for call_id in live - _longest_chain(graph, live)}


def _longest_chain(graph: CallGraph, live: set[str]) -> set[str]:
    """Return the chain with most calls; on a tie the one whose last answer came latest."""
    tips = [call_id for call_id in live if not live.intersection(graph.successors[call_id])]
    chains = [(tip, live & (graph.ancestors(tip) | {tip})) for tip in tips]

    def rank(chain: tuple[str, set[str]]) -> tuple[int, float, int]:
        tip = graph.calls[chain[0]]
        return len(chain[1]), tip.started_s + tip.duration_s, tip.index

    return max(chains, key=rank)[1]
