import pytest

from mixharness.tree.graph import build_graph
from mixharness.types import ModelCall


def call(index: int, name: str, *, parent: str | None = None, length: int = 0, **fields: object):
    return ModelCall(
        id=name,
        rollout_id="r",
        index=index,
        parent_call=parent,
        parent_len=length,
        environment_ids=(1, 1, 1),
        sampled_ids=(2, 2),
        logprobs=(-0.5, -0.5),
        **fields,
    )


def test_sharing_a_parents_sampled_tokens_is_continuing_it():
    graph = build_graph([call(0, "a"), call(1, "b", parent="a", length=5)])
    assert graph.predecessor("b") == "a"
    assert graph.continued("a")
    assert not graph.continued("b")


def test_sharing_only_the_prompt_is_standing_beside_it():
    calls = [
        call(0, "a"),
        call(1, "b", parent="a", length=5),
        call(2, "c", parent="b", length=7),
    ]
    graph = build_graph(calls)
    assert graph.predecessor("c") == "a"
    assert ("b", "c") in graph.siblings().values()
    assert not graph.continued("b")


def test_a_rewritten_history_continues_without_sharing_a_token():
    graph = build_graph([call(0, "a"), call(1, "b", continues=("a",), fork="rewritten")])
    assert graph.successors["a"] == ("b",)
    assert graph.ancestors("b") == {"a"}


def test_an_id_that_stands_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        build_graph([call(0, "a"), call(1, "a")])
