"""The call graph: which model call continues which (TOKENS_AND_TREES section 2).

It knows messages, not tokens: a rewritten or compacted history still continues its calls. Which
tokens are shared is the token tree's business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixharness.types import CallRole, Delivery, ModelCall

_Position = tuple[str, CallRole, int, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGraph:
    """Who continues whom, among the calls of one rollout. Built by `build_graph`."""

    calls: Mapping[str, ModelCall]
    """By id, in order of arrival."""
    holds: Mapping[str, tuple[str, ...]]
    """Calls whose messages a request was seen to end in; the newest comes last."""
    successors: Mapping[str, tuple[str, ...]]
    """Calls whose request holds this one's message."""
    epochs: Mapping[str, int]
    """Compaction epoch within the call's agent, from 0."""

    def predecessor(self, call_id: str) -> str | None:
        """Return the newest call this one continues; None at a beginning."""
        return self.holds[call_id][-1] if self.holds[call_id] else None

    def continued(self, call_id: str) -> bool:
        """Say whether any later request holds this call's message."""
        return bool(self.successors[call_id])

    def siblings(self) -> dict[_Position, tuple[str, ...]]:
        """Group the calls that answer from one position of one agent: retries of each other."""
        groups: dict[_Position, list[str]] = defaultdict(list)
        for call in self.calls.values():
            previous = self.predecessor(call.id)
            groups[call.agent, call.role, self.epochs[call.id], previous].append(call.id)
        return {position: tuple(ids) for position, ids in groups.items()}

    def ancestors(self, call_id: str) -> frozenset[str]:
        """Return all calls this one continues, directly or not."""
        found: set[str] = set()
        waiting = list(self.holds[call_id])
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting.extend(self.holds[current])
        return frozenset(found)


def build_graph(calls: Sequence[ModelCall]) -> CallGraph:
    """Link the calls of one rollout.

    Raises:
        ValueError: a call names one that is not there or came later, or an id stands twice.
    """
    by_id = {call.id: call for call in sorted(calls, key=lambda call: call.index)}
    if len(by_id) != len(calls):
        raise ValueError("a call id stands twice in one rollout")
    holds: dict[str, tuple[str, ...]] = {}
    successors: dict[str, list[str]] = {call_id: [] for call_id in by_id}
    for call in by_id.values():
        holds[call.id] = _held(call, by_id)
        for held in holds[call.id]:
            successors[held].append(call.id)
    return CallGraph(
        calls=by_id,
        holds=holds,
        successors={call_id: tuple(ids) for call_id, ids in successors.items()},
        epochs=_epochs(by_id, holds),
    )


def extends_parent(call: ModelCall, parent: ModelCall) -> bool:
    """Say whether `call` shares all of its parent's tokens, the sampled ones included."""
    end = parent.parent_len + len(parent.environment_ids) + len(parent.sampled_ids)
    return call.parent_len == end


def _held(call: ModelCall, by_id: Mapping[str, ModelCall]) -> tuple[str, ...]:
    """Return the calls a request ends in, as it says, or else as its shared tokens tell."""
    for name in (*call.continues, *([call.parent_call] if call.parent_call else [])):
        if name not in by_id or by_id[name].index >= call.index:
            raise ValueError(f"call {call.id} refers to {name}, which is no earlier call")
    found = set(call.continues)
    parent = by_id[call.parent_call] if call.parent_call else None
    if parent is not None and extends_parent(call, parent):
        found.add(parent.id)
    if not found and parent is not None:
        return _held_within(call, parent, by_id)
    return tuple(sorted(found, key=lambda call_id: by_id[call_id].index))


def _held_within(
    call: ModelCall, parent: ModelCall, by_id: Mapping[str, ModelCall]
) -> tuple[str, ...]:
    """Return the call whose sampled tokens come last among those that `call` shares."""
    owner, shared = parent, call.parent_len
    while owner.parent_call is not None:
        before = by_id[owner.parent_call]
        if owner.parent_len <= shared and extends_parent(owner, before):
            return (before.id,)
        owner, shared = before, min(shared, owner.parent_len)
    return ()


def _epochs(by_id: Mapping[str, ModelCall], holds: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Number the compaction epochs of each agent.

    The first continuation of a call stays in its epoch, whatever was compacted in between. Any
    other call starts a new epoch if its agent compacted since the previous call, else it shares
    that call's epoch.
    """
    epochs: dict[str, int] = {}
    compactions: dict[str, int] = defaultdict(int)
    latest: dict[tuple[str, CallRole], tuple[int, int]] = {}
    extended: set[tuple[str, str, CallRole]] = set()
    for call in by_id.values():
        lane = (call.agent, call.role)
        epoch, seen = latest.get(lane, (0, compactions[call.agent]))
        previous = holds[call.id][-1] if holds[call.id] else ""
        continues_lane = previous and (by_id[previous].agent, by_id[previous].role) == lane
        if continues_lane and (previous, *lane) not in extended:
            epoch = epochs[previous]
            extended.add((previous, *lane))
        elif compactions[call.agent] > seen:
            epoch += 1
        if call.role is CallRole.COMPACTION and call.delivery is Delivery.DELIVERED:
            compactions[call.agent] += 1
        epochs[call.id] = epoch
        latest[lane] = (epoch, compactions[call.agent])
    return epochs
