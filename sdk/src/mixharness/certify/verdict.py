"""From a situation's rollout to a verdict: what happened and what was expected. Runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from mixharness.certify.expectations import Expected
from mixharness.certify.front import Traffic
from mixharness.certify.situations import Situation
from mixharness.tree.audit import audit
from mixharness.tree.graph import extends_parent
from mixharness.tree.prune import ROLE, prune
from mixharness.types import CallRole, ModelCall, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFound:
    """A call that could not continue what was known, or an answer that nothing continued.

    The reason is the call's `fork`, or why pruning leaves its answer out: a program that drops an
    answer and asks again has forked, though the call that asks again continues an older one.
    """

    reason: str
    expected: bool
    span: str = ""
    """The first differing span, as `known -> received`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SituationReport:
    """What became of one situation."""

    name: str
    problems: tuple[str, ...] = ()
    """Everything that is not as expected; empty when all is."""
    calls: int = 0
    bridged: int = 0
    """Calls whose prompt holds every token of the one before, as it was sampled."""
    forks: tuple[ForkFound, ...] = ()
    retries: int = 0
    """Requests that asked what an earlier one had asked."""
    roles: Mapping[str, int] = field(default_factory=dict)
    """Calls by role."""
    max_silence_s: float = 0.0
    """Longest time without a byte on a streamed answer; 0 for a program that streams none."""
    exit: str = ""
    """`completed`, a kind of failure, or `not applicable: REASON`."""

    @property
    def ok(self) -> bool:
        """Say whether all was as expected."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return the fields that programs read."""
        return {
            "name": self.name,
            "ok": self.ok,
            "calls": self.calls,
            "bridged": self.bridged,
            "forks": [{"reason": f.reason, "expected": f.expected} for f in self.forks],
            "roles": dict(self.roles),
            "max_silence_s": round(self.max_silence_s, 3),
            "exit": self.exit,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """All situations of one program version."""

    harness: str
    version: str
    situations: tuple[SituationReport, ...]

    @property
    def ok(self) -> bool:
        """Say whether the harness can be trained in as its plugin says."""
        return all(situation.ok for situation in self.situations)

    def as_json(self) -> dict[str, Any]:
        """Return the fields that programs read."""
        return {
            "harness": self.harness,
            "version": self.version,
            "ok": self.ok,
            "situations": [situation.as_json() for situation in self.situations],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A situation that was run, and everything that was noted."""

    situation: Situation
    expected: Expected
    rollout: Rollout
    traffic: Traffic
    seen: bool
    """Some prompt held what the situation wants to be seen."""
    silence_limit_s: float
    """Longest time a stream may stay without a byte."""


def judge(played: Played) -> SituationReport:
    """Compare what happened with what was expected."""
    rollout, calls = played.rollout, played.rollout.calls
    forks = _forks(calls, played.expected.forks)
    return SituationReport(
        name=played.situation.name,
        problems=(*_fork_problems(forks, played.expected.forks), *_problems(played)),
        calls=len(calls),
        bridged=_bridged(calls),
        forks=forks,
        retries=played.traffic.retries,
        roles=Counter(call.role.value for call in calls),
        max_silence_s=played.traffic.max_silence_s,
        exit=_exit(rollout),
    )


def not_applicable(situation: Situation, reason: str) -> SituationReport:
    """Return the report of a situation that a program cannot be in."""
    return SituationReport(name=situation.name, exit=f"not applicable: {reason}")


def _forks(calls: Sequence[ModelCall], expected: Sequence[str]) -> tuple[ForkFound, ...]:
    left = list(expected)
    found: list[ForkFound] = []
    for reason, span in _reasons(calls):
        known = bool(left) and left[0] == reason
        left = left[known:]
        found.append(ForkFound(reason=reason, expected=known, span=span))
    return tuple(found)


def _reasons(calls: Sequence[ModelCall]) -> Iterator[tuple[str, str]]:
    dead = prune(calls).reasons
    for call in calls:
        if call.fork:
            yield call.fork, call.fork_span
        reason = dead.get(call.id, ROLE)
        if not reason.startswith(ROLE):
            yield reason, f"the answer of call {call.index}"


def _fork_problems(forks: Sequence[ForkFound], expected: Sequence[str]) -> Iterator[str]:
    for fork in forks:
        if not fork.expected:
            yield f"unexpected fork {fork.reason}: {fork.span or 'no differing span'}"
    for reason in expected[sum(fork.expected for fork in forks) :]:
        yield f"expected fork {reason} did not happen"


def _bridged(calls: Sequence[ModelCall]) -> int:
    by_id = {call.id: call for call in calls}
    parents = ((call, by_id[call.parent_call]) for call in calls if call.parent_call)
    return sum(not call.fork and extends_parent(call, parent) for call, parent in parents)


def _exit(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return rollout.failure.kind.value
    return rollout.exit.reason if rollout.exit else "no exit"


def _problems(played: Played) -> Iterator[str]:
    situation, expected, rollout = played.situation, played.expected, played.rollout
    wanted = expected.exit or situation.exit
    if _exit(rollout) != wanted:
        detail = f": {rollout.failure.detail}" if rollout.failure else ""
        yield f"ended as {_exit(rollout)}, not {wanted}{detail}"
    calls = situation.calls if expected.calls is None else expected.calls
    if calls is not None and len(rollout.calls) != calls:
        yield f"{len(rollout.calls)} calls, not {calls}"
    roles = {call.role for call in rollout.calls}
    if roles != expected.roles:
        yield f"roles {_listed(roles)}, not {_listed(expected.roles)}"
    if situation.role is not None and situation.role not in roles:
        yield f"it did not happen: no call had the role {situation.role.value}"
    if not played.seen:
        yield f"it did not happen: no prompt held {situation.seen}"
    if situation.fault is not None and not played.traffic.struck:
        yield "it did not happen: no request came that the fault could befall"
    if played.traffic.max_silence_s > played.silence_limit_s:
        yield f"a stream was silent for {played.traffic.max_silence_s:.1f} s"
    (found,) = audit([rollout]).values()
    if found.unexplained_loss:
        yield f"{found.unexplained_loss:.2%} of the sampled tokens are lost without a reason"


def _listed(roles: Set[CallRole]) -> str:
    return ", ".join(sorted(role.value for role in roles)) or "none"
