"""What holds of graph, pruning and token tree together, over made-up but possible rollouts.

A `Program` plays what harnesses do: it goes on, asks again, rewrites its history, compacts it, runs
sub-agents beside its own conversation and asks side questions.
"""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mixharness.tree.graph import build_graph
from mixharness.tree.prune import ROLE, Pruned, Pruning, prune
from mixharness.tree.tokens import build_tree
from mixharness.types import CallRole, Delivery, ModelCall, NodeKind, TokenTree

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
"""Few values, so that different calls share beginnings by chance."""
LOST = (Delivery.PENDING, Delivery.CANCELLED, Delivery.UNKNOWN)
MOVES = ("next", "next", "next", "again", "rewrite", "compact", "spawn", "aside")


class Program:
    """The calls of one rollout in the making."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.calls: list[ModelCall] = []
        self.tips: dict[str, ModelCall] = {}
        """Agent to the call whose answer it last went on from."""

    def play(self, moves: int) -> list[ModelCall]:
        self.ask("", CallRole.MAIN, None)
        for _ in range(moves):
            agent = self.draw(st.sampled_from(sorted(self.tips)))
            getattr(self, self.draw(st.sampled_from(MOVES)))(agent)
        return self.calls

    def next(self, agent: str) -> None:
        self.ask(agent, self.tips[agent].role, self.tips[agent])

    def again(self, agent: str) -> None:
        """Ask at the very place of the last answer; one of the two goes on later, or none."""
        first = self.tips[agent]
        second = self.add(
            agent=agent,
            role=first.role,
            parent_call=first.parent_call,
            parent_len=first.parent_len,
            environment_ids=first.environment_ids,
            replayed=first.replayed,
            continues=first.continues,
        )
        self.tips[agent] = self.draw(st.sampled_from([first, second]))

    def rewrite(self, agent: str) -> None:
        """Go on, but with an earlier text changed: the last answer is context on a new branch."""
        last = self.tips[agent]
        before, after = self.draw(TOKENS), self.draw(TOKENS)
        start, end = len(before), len(before) + len(last.sampled_ids)
        length = self.draw(st.integers(last.parent_len, prompt_len(last)))
        if any(a < length - last.parent_len < b for a, b in last.replayed):
            length = prompt_len(last)  # a replayed span is shared whole or not at all
        self.tips[agent] = self.add(
            agent=agent,
            role=last.role,
            parent_call=last.id,
            parent_len=length,
            environment_ids=before + last.sampled_ids + after,
            replayed=((start, end),),
            continues=(last.id,),
            fork="user_changed",
        )

    def compact(self, agent: str) -> None:
        """Have the history summed up; what came back is what the agent begins anew with."""
        self.ask(agent, CallRole.COMPACTION, self.tips[agent], move=False)
        if self.calls[-1].delivery is Delivery.DELIVERED:
            self.ask(agent, self.tips[agent].role, None)

    def spawn(self, agent: str) -> None:
        self.ask(f"sub-{len(self.calls)}", CallRole.SUBAGENT, None)

    def aside(self, agent: str) -> None:
        self.ask(f"aside-{len(self.calls)}", CallRole.AUXILIARY, None, move=False)

    def ask(self, agent: str, role: CallRole, after: ModelCall | None, move: bool = True) -> None:
        call = self.add(
            agent=agent,
            role=role,
            parent_call=after.id if after else None,
            parent_len=prompt_len(after) + len(after.sampled_ids) if after else 0,
            environment_ids=self.draw(TOKENS),
            continues=(after.id,) if after else (),
        )
        if move:
            self.tips[agent] = call

    def add(self, **fields: object) -> ModelCall:
        index, sampled = len(self.calls), self.draw(TOKENS)
        call = ModelCall(
            id=f"c{index}",
            rollout_id="r",
            index=index,
            sampled_ids=sampled,
            logprobs=(-1.0,) * len(sampled),
            started_s=float(index),
            delivery=self.draw(st.sampled_from([Delivery.DELIVERED] * 3 + [*Delivery])),
            **fields,
        )
        self.calls.append(call)
        return call


def prompt_len(call: ModelCall) -> int:
    return call.parent_len + len(call.environment_ids)


@st.composite
def rollouts(draw: st.DrawFn) -> list[ModelCall]:
    return Program(draw).play(draw(st.integers(0, 12)))


PRUNINGS = st.sampled_from([Pruning(branch_credit=credit) for credit in (0.0, 0.5, 1.0)])


def is_dead(pruned: Pruned, call: ModelCall) -> bool:
    return not pruned.reasons.get(call.id, ROLE).startswith(ROLE)


def without_dead(calls: list[ModelCall], pruned: Pruned) -> list[ModelCall]:
    """Leave out the dead calls that nothing hangs on; what was kept had been delivered.

    A dead call stays when a later one refers to it, or when it alone shows that the answer before
    it was taken.
    """
    holds = build_graph(calls).holds
    left = {call.id: call for call in calls}
    for call in reversed(calls):
        others = [other for other in left.values() if other is not call]
        named = {name for other in others for name in (*other.continues, other.parent_call)}
        shown = {name for other in others for name in holds[other.id]}
        if not is_dead(pruned, call):
            left[call.id] = replace(call, delivery=Delivery.DELIVERED)
        elif call.id not in named and shown.issuperset(holds[call.id]):
            del left[call.id]
    return list(left.values())


def trained(tree: TokenTree) -> Counter[tuple[object, ...]]:
    return Counter(
        (node.call_id, node.ids, node.logprobs, node.credit) for node in tree.nodes if node.trained
    )


@given(rollouts(), PRUNINGS)
def test_pruning_what_was_kept_changes_nothing(calls: list[ModelCall], pruning: Pruning) -> None:
    first = prune(calls, pruning)
    left = without_dead(calls, first)
    again = prune(left, pruning)
    assert again.credits == first.credits
    assert again.reasons == {c.id: first.reasons[c.id] for c in left if c.id in first.reasons}
    assert trained(build_tree(left, again)) == trained(build_tree(calls, first))


@given(rollouts(), PRUNINGS, st.data())
def test_a_dead_retry_changes_no_weight(
    calls: list[ModelCall], pruning: Pruning, data: st.DataObject
) -> None:
    """T_i and all that is trained stay; so does a token's weight, which is made of T_i alone."""
    place = data.draw(st.integers(0, len(calls) - 1))
    original = calls[place]
    continued = any(original.id in (*c.continues, c.parent_call) for c in calls)
    delivery = data.draw(st.sampled_from([*LOST, Delivery.DELIVERED] if continued else LOST))
    sampled = data.draw(TOKENS)
    retry = replace(
        original,
        id="retry",
        delivery=delivery,
        sampled_ids=sampled,
        logprobs=(-2.0,) * len(sampled),
    )
    more = [*calls[: place + 1], retry, *calls[place + 1 :]]
    more = [replace(call, index=index) for index, call in enumerate(more)]

    before, after = prune(calls, pruning), prune(more, pruning)
    assert after.credits == before.credits
    assert after.reasons == {**before.reasons, "retry": after.reasons["retry"]}
    trees = build_tree(calls, before), build_tree(more, after)
    assert trees[0].trained_tokens == trees[1].trained_tokens
    assert trained(trees[0]) == trained(trees[1])


@given(rollouts(), PRUNINGS)
def test_each_sampled_token_trains_once_or_has_a_reason(
    calls: list[ModelCall], pruning: Pruning
) -> None:
    pruned = prune(calls, pruning)
    assert pruned.credits.keys() | pruned.reasons.keys() == {call.id for call in calls}
    assert pruned.credits.keys().isdisjoint(pruned.reasons)
    tree = build_tree(calls, pruned)
    sampled = [node for node in tree.nodes if node.kind is NodeKind.SAMPLED]
    assert Counter(node.call_id for node in sampled) == Counter(call.id for call in calls)
    for node in sampled:
        assert node.trained == (node.reason == "")
        assert node.credit == pruned.credits.get(node.call_id, 0.0)
    assert not any(node.trained for node in tree.nodes if node.kind is not NodeKind.SAMPLED)
    roles = {call.id: call.role for call in calls}
    expected = {CallRole.MAIN: {1.0}}
    for call_id, credit in pruned.credits.items():
        assert credit in expected.get(roles[call_id], {pruning.branch_credit})


@given(rollouts())
def test_building_stores_no_token_twice(calls: list[ModelCall]) -> None:
    """Linear: what a tree holds is at most what was new in each call."""
    tree = build_tree(calls, prune(calls))
    new = sum(len(call.environment_ids) + len(call.sampled_ids) for call in calls)
    assert sum(len(node.ids) for node in tree.nodes) <= new
    runs = sum(1 + 2 * len(call.replayed) for call in calls)
    assert len(tree.nodes) <= 3 * len(calls) + 2 * runs
