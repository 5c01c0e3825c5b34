from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixharness.tree.prune import Pruned, prune
from mixharness.tree.tokens import build_tree, merge_trees, prompt_ids
from mixharness.types import CallRole, Delivery, ModelCall, NodeKind, TokenTree

TOKENS = st.integers(0, 2)  # few enough that different calls share beginnings by chance


@st.composite
def histories(draw: st.DrawFn, rollout: str = "r") -> list[ModelCall]:
    """Random rollouts: chains, forks, retries, sub-agents, rewrites, cancelled calls."""
    calls: list[ModelCall] = []
    for index in range(draw(st.integers(1, 12))):
        environment = tuple(draw(st.lists(TOKENS, max_size=5)))
        sampled = tuple(draw(st.lists(TOKENS, max_size=4)))
        parent = draw(st.sampled_from([None, *calls]))
        length = 0
        if parent is not None:
            prompt = parent.parent_len + len(parent.environment_ids)
            inside = draw(st.integers(parent.parent_len, prompt))
            length = draw(st.sampled_from([prompt + len(parent.sampled_ids), inside]))
            if any(
                parent.parent_len + s < length < parent.parent_len + e for s, e in parent.replayed
            ):
                length = prompt
            if length < parent.parent_len + 1:
                length = prompt
        start = draw(st.integers(0, len(environment)))
        end = draw(st.integers(start, len(environment)))
        role = draw(st.sampled_from([CallRole.MAIN, CallRole.MAIN, *CallRole]))
        calls.append(
            ModelCall(
                id=f"{rollout}{index}",
                rollout_id=rollout,
                index=index,
                role=role,
                agent="sub" if role is CallRole.SUBAGENT else "",
                parent_call=parent.id if parent else None,
                parent_len=length,
                environment_ids=environment,
                replayed=((start, end),) if start < end and draw(st.booleans()) else (),
                sampled_ids=sampled,
                logprobs=(-1.0,) * len(sampled),
                continues=tuple(draw(st.sets(st.sampled_from([c.id for c in calls]), max_size=1)))
                if calls and draw(st.booleans())
                else (),
                delivery=draw(st.sampled_from([Delivery.DELIVERED, *Delivery])),
            )
        )
    return calls


def path(tree: TokenTree, index: int) -> tuple[int, ...]:
    """All tokens from the root to the end of a node."""
    pieces = []
    while index >= 0:
        pieces.append(tree.nodes[index].ids)
        index = tree.nodes[index].parent
    return tuple(token for piece in reversed(pieces) for token in piece)


def naive_prompt(calls: list[ModelCall], call: ModelCall) -> tuple[int, ...]:
    if call.parent_call is None:
        return call.environment_ids
    parent = next(c for c in calls if c.id == call.parent_call)
    known = naive_prompt(calls, parent) + parent.sampled_ids
    return known[: call.parent_len] + call.environment_ids


def assert_paths(tree: TokenTree, calls: list[ModelCall]) -> None:
    by_id = {call.id: call for call in calls}
    found = Counter(n.call_id for n in tree.nodes if n.kind is NodeKind.SAMPLED)
    assert found == Counter(call.id for call in calls if call.sampled_ids)
    for index, node in enumerate(tree.nodes):
        assert node.parent < index
        assert node.depth + len(node.ids) == len(path(tree, index))
        if node.kind is NodeKind.SAMPLED:
            call = by_id[node.call_id]
            assert path(tree, index) == prompt_ids(calls, call.id) + call.sampled_ids
            assert node.logprobs == call.logprobs


def siblings_start_alike(tree: TokenTree) -> bool:
    """Say whether two environment nodes that should have merged did not."""
    starts = Counter((n.parent, n.ids[0]) for n in tree.nodes if n.kind is NodeKind.ENVIRONMENT)
    return any(count > 1 for count in starts.values())


@given(histories())
def test_every_path_is_what_the_engine_read_and_sampled(calls: list[ModelCall]):
    for call in calls:
        assert prompt_ids(calls, call.id) == naive_prompt(calls, call)
    tree = build_tree(calls, prune(calls))
    assert_paths(tree, calls)
    assert not siblings_start_alike(tree)


@given(histories())
def test_each_sampled_token_is_trained_once_or_has_a_reason(calls: list[ModelCall]):
    pruned = prune(calls)
    tree = build_tree(calls, pruned)
    assert pruned.kept.isdisjoint(pruned.reasons)
    for node in tree.nodes:
        if node.kind is NodeKind.SAMPLED:
            assert node.trained == (node.call_id in pruned.kept)
            assert node.trained != bool(node.reason)
        else:
            assert not node.trained
    kept = [call for call in calls if call.id in pruned.kept]
    assert tree.trained_tokens == sum(len(call.sampled_ids) for call in kept)
    for call in kept:
        assert call.role is CallRole.MAIN
        assert call.delivery is not Delivery.CANCELLED


@given(histories("r"), histories("s"), histories("t"))
def test_merging_a_group_joins_environment_tokens_only(r, s, t):
    group = [r, s, t]
    trees = [build_tree(calls, prune(calls)) for calls in group]
    merged = merge_trees(trees)
    assert_paths(merged, [call for calls in group for call in calls])
    assert not siblings_start_alike(merged)
    assert merged.trained_tokens == sum(tree.trained_tokens for tree in trees)
    for node in merged.nodes:
        if node.kind is NodeKind.SAMPLED:
            assert node.call_id.startswith(node.rollout_id)


@given(histories("r"), histories("s"))
def test_merging_again_changes_nothing(r, s):
    group = [r, s]
    tree = merge_trees([build_tree(calls, prune(calls)) for calls in group])
    assert merge_trees([tree]) == tree


def call(index: int, environment: tuple[int, ...], sampled: tuple[int, ...], **fields: object):
    return ModelCall(
        id=f"c{index}",
        rollout_id="r",
        index=index,
        environment_ids=environment,
        sampled_ids=sampled,
        logprobs=(-1.0,) * len(sampled),
        delivery=Delivery.DELIVERED,
        **fields,
    )


def shape(tree: TokenTree) -> list[tuple[int, str, tuple[int, ...]]]:
    return [(node.parent, node.kind.value[0], node.ids) for node in tree.nodes]


KEEP_ALL = Pruned(credits=dict.fromkeys(("c0", "c1", "c2"), 1.0), reasons={})


def test_only_the_environment_splits_at_a_fork():
    calls = [call(0, (1, 2, 3), (9,)), call(1, (5,), (8,), parent_call="c0", parent_len=2)]
    tree = build_tree(calls, KEEP_ALL)
    expected = [(-1, "e", (1, 2)), (0, "e", (3,)), (1, "s", (9,)), (0, "e", (5,)), (3, "s", (8,))]
    assert shape(tree) == expected


def test_equal_prompts_share_their_tokens_even_when_recorded_apart():
    tree = build_tree([call(0, (1, 2), (7,)), call(1, (1, 2), (7,))], KEEP_ALL)
    assert shape(tree) == [(-1, "e", (1, 2)), (0, "s", (7,)), (0, "s", (7,))]
    assert tree.trained_tokens == 2


def test_replayed_tokens_are_context():
    calls = [call(0, (1,), (7, 7)), call(1, (4, 7, 7, 5), (8,), replayed=((1, 3),))]
    tree = build_tree(calls, KEEP_ALL)
    replayed = [node for node in tree.nodes if node.kind is NodeKind.REPLAYED]
    assert [(node.ids, node.trained) for node in replayed] == [((7, 7), False)]
    assert tree.trained_tokens == 3


def test_continuing_inside_sampled_ids_is_refused():
    calls = [call(0, (1, 2), (7, 7)), call(1, (5,), (8,), parent_call="c0", parent_len=3)]
    with pytest.raises(ValueError, match="call c1: parent_len 3 is no place to continue call c0"):
        build_tree(calls, KEEP_ALL)


def test_a_call_without_a_verdict_is_refused():
    with pytest.raises(ValueError, match="call c0 is neither trained nor has a reason"):
        build_tree([call(0, (1,), (2,))], Pruned(credits={}, reasons={}))
