from dataclasses import replace

import pytest

from mixharness.types import TokenTree
from mixharness_trainer.attention import Layout
from mixharness_trainer.packing import Member, pack

RUNS = [(-1, "e", 3), (0, "s", 2), (1, "e", 2), (2, "s", 1), (1, "s", 1), (0, "e", 4)]


def member(tree, rollout_id="r", **options):
    return Member(
        rollout_id=rollout_id, tree=tree, advantages=list(range(tree.trained_tokens)), **options
    )


def test_edges_point_from_the_token_before_to_the_sampled_one(tree):
    built = tree("r", RUNS)

    (batch,) = pack([[member(built, rollout=4, weight=0.5)]], max_tokens=100)

    (row,) = batch.rows
    # Node 5 leads to nothing that is trained and is left out.
    expected = [token for index in (0, 1, 2, 3, 4) for token in built.nodes[index].ids]
    assert row.ids_N.tolist() == expected
    assert row.depth_N.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 5]
    assert row.end_N.tolist() == [9, 9, 9, 9, 9, 8, 8, 8, 9]
    # One state (position 4, the end of the first sampled run) predicts a fork's token; position 6
    # predicts the other branch's.
    assert batch.position_E.tolist() == [2, 3, 6, 4]
    assert batch.target_E.tolist() == [row.ids_N[place].item() for place in (3, 4, 7, 8)]
    assert batch.token_E.tolist() == [0, 1, 2, 3]
    assert batch.advantage_E.tolist() == [0, 1, 2, 3]
    assert batch.rollout_E.tolist() == [4] * 4
    assert batch.weight_E.tolist() == [0.5] * 4
    assert batch.version_E.tolist() == [0] * 4
    assert batch.temperature_E.tolist() == pytest.approx([0.7, 0.7, 0.7, 1.0])
    logps = [logp for node in built.nodes for logp in node.logprobs]
    assert batch.logp_rollout_E.tolist() == pytest.approx(logps)


def test_one_state_predicts_both_branches_of_a_fork(tree):
    built = tree("r", [(-1, "e", 2), (0, "s", 2), (0, "s", 3)])

    (batch,) = pack([[member(built)]], max_tokens=100)

    assert batch.position_E.tolist() == [1, 2, 1, 4, 5]


def test_a_group_shares_its_prefix_and_two_groups_share_nothing(tree):
    runs = [(-1, "e", 50), (0, "s", 5)]
    group = [member(tree(f"r{n}", runs, seed=n), f"r{n}") for n in range(4)]
    other = [member(tree(f"q{n}", runs, seed=n), f"q{n}") for n in range(2)]

    (batch,) = pack([group, other], max_tokens=1000)

    assert batch.num_tokens == (50 + 4 * 5) + (50 + 2 * 5)
    assert batch.num_edges == 6 * 5


def test_batches_keep_to_the_limit_and_never_cut_a_rollout(tree):
    runs = [(-1, "e", 50), (0, "s", 5)]
    group = [member(tree(f"r{n}", runs, seed=n), f"r{n}", rollout=n) for n in range(4)]
    large = member(tree("big", [(-1, "e", 60), (0, "s", 40)]), "big", rollout=4)

    batches = pack([group, [large]], max_tokens=62)

    assert [batch.num_tokens for batch in batches] == [60, 60, 100]
    assert [sorted(set(batch.rollout_E.tolist())) for batch in batches] == [[0, 1], [2, 3], [4]]


def test_paths_layout_repeats_prefixes_but_no_edge(tree):
    built = tree("r", RUNS)

    (batch,) = pack([[member(built)]], max_tokens=100, layout=Layout.PATHS)

    assert [row.depth_N.tolist() for row in batch.rows] == [list(range(8)), list(range(6))]
    assert sorted(batch.token_E.tolist()) == [0, 1, 2, 3]
    assert batch.position_E.tolist() == [2, 3, 6, 8 + 4]


def test_untrained_rollouts_are_not_laid_out(tree):
    assert pack([[member(tree("r", [(-1, "e", 3), (0, "u", 2)]))]], max_tokens=100) == []


def test_a_sampled_run_without_a_token_before_it_is_an_error(tree):
    with pytest.raises(ValueError, match="rollout r, call call-0: a sampled run needs a token"):
        pack([[member(tree("r", [(-1, "s", 3)]))]], max_tokens=100)


def test_greedy_sampling_cannot_be_trained(tree):
    built = tree("r", [(-1, "e", 3), (0, "s", 2)])
    cold = TokenTree((built.nodes[0], replace(built.nodes[1], temperature=0.0)))

    with pytest.raises(ValueError, match="temperature 0"):
        pack([[member(cold)]], max_tokens=100)
