from dataclasses import replace

import pytest
import torch

from mixharness.errors import ConfigError
from mixharness.tree import Pruning
from mixharness.types import CallRole, Delivery, GroupKey, ModelCall, Rollout, Score
from mixharness_trainer.attention import Layout
from mixharness_trainer.groups import group_rollouts
from mixharness_trainer.loss import GapError
from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig
from mixharness_trainer.policy import optimizer_hash, weight_hash
from mixharness_trainer.update import UpdateSettings, update

RUNS = [(-1, "e", 5), (0, "s", 4), (1, "e", 2), (2, "s", 3)]
GRPO = Grpo(GrpoConfig())


def weights(policy):
    return torch.cat([p.detach().flatten().clone() for p in policy.model.parameters()])


def moved(policy, groups, **settings):
    """Return the gradient's effect: how a plain gradient step of size 1 moves the weights."""
    policy.adamw = torch.optim.SGD(policy.model.parameters(), lr=1.0)
    before = weights(policy)
    metrics = update(policy, groups, GRPO, UpdateSettings(max_grad_norm=1e9, **settings))
    return weights(policy) - before, metrics


def test_mixed_batch_is_one_update_with_figures_per_harness(policy, mixed_groups):
    tested = policy()
    before = weight_hash(tested)

    metrics = update(tested, mixed_groups, GRPO, UpdateSettings())

    assert weight_hash(tested) != before
    assert tested.step == 1
    for label in ("agentloop", "claude_code"):
        assert metrics[f"groups/{label}"] == metrics[f"groups_with_contrast/{label}"] == 1
        assert metrics[f"grad_norm/{label}"] > 0
    assert metrics["tokens"] == 20 + 10 + 2 + 10 + 20
    assert metrics["groups"] == 2
    assert metrics["entropy"] > 0
    assert metrics["grad_norm"] > 0
    assert metrics["logp_gap/mean_abs"] == metrics["logp_gap/mean_abs_lag_0"] > 0
    assert metrics["logp_gap/mean_abs/agentloop"] != metrics["logp_gap/mean_abs/claude_code"]


def test_loss_of_one_minibatch_is_minus_the_weighted_advantages(policy, tree, group):
    """At ratio 1 and without correction, L = -mean over groups (1/G) Σ Â, summed by hand."""
    groups = [
        group("a", [tree("a0", RUNS), tree("a1", RUNS, 1)], [1.0, 0.0]),
        group("b", [tree("b0", RUNS, 2), tree("b1", [(-1, "e", 3)])], [1.0, 0.0]),
    ]

    metrics = update(policy(), groups, Grpo(GrpoConfig(correction="off")), UpdateSettings())

    # Group a cancels; of group b only the winner has tokens, and its loser counts in G.
    assert metrics["loss"] == pytest.approx(-(1 / 2) * (1 / 2) * 1.0, rel=1e-4)


@pytest.mark.parametrize("normalization", ["group", "rollout", "token", "harness"])
def test_micro_batches_change_no_gradient(policy, mixed_groups, normalization):
    whole, metrics = moved(policy(), mixed_groups, loss_normalization=normalization)
    cut, cut_metrics = moved(
        policy(), mixed_groups, loss_normalization=normalization, max_tokens_per_batch=40
    )

    assert ((cut - whole).norm() / whole.norm()).item() < 1e-5
    assert cut_metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert cut_metrics["tokens_read"] > metrics["tokens_read"]


def test_minibatches_at_tiny_steps_add_up_to_the_whole_batch(policy, mixed_groups):
    whole, _ = moved(policy(), mixed_groups)
    tested = policy()
    tested.adamw = torch.optim.SGD(tested.model.parameters(), lr=1e-3)
    before = weights(tested)

    update(tested, mixed_groups, GRPO, UpdateSettings(max_grad_norm=1e9, minibatches=2))

    sum_of_steps = (weights(tested) - before) / 1e-3 / 2
    assert ((sum_of_steps - whole).norm() / whole.norm()).item() < 0.02


def test_same_seed_same_weights_and_optimizer(policy, mixed_groups):
    settings = UpdateSettings(minibatches=2, epochs=2, max_tokens_per_batch=60)
    first, second = policy(seed=3), policy(seed=3)

    logs = [
        [update(one, mixed_groups, GRPO, settings) for _ in range(2)] for one in (first, second)
    ]

    assert logs[0] == logs[1]
    assert weight_hash(first) == weight_hash(second)
    assert optimizer_hash(first) == optimizer_hash(second)
    assert weight_hash(policy(seed=4)) != weight_hash(policy(seed=5))


def test_second_epoch_sees_the_first_as_old(policy, mixed_groups):
    metrics = update(policy(lr=0.05), mixed_groups, GRPO, UpdateSettings(epochs=3))

    assert metrics["ratio_clipped"] > 0


def test_learning_rate_zero_changes_nothing(policy, mixed_groups):
    tested = policy(lr=0.0)
    before = weight_hash(tested)

    update(tested, mixed_groups, GRPO, UpdateSettings())

    assert weight_hash(tested) == before


def test_unanimous_groups_move_nothing_but_count(policy, tree, group, mixed_groups):
    same = group("agentloop", [tree("c0", RUNS), tree("c1", RUNS, 1)], [1.0, 1.0], task="u")
    alone = policy()
    before = weight_hash(alone)

    metrics = update(alone, [same], GRPO, UpdateSettings())
    base, _ = moved(policy(), mixed_groups)
    counted, counted_metrics = moved(policy(), [*mixed_groups, same])
    dropped, _ = moved(policy(), [*mixed_groups, same], drop_unanimous=True)

    assert weight_hash(alone) == before
    assert metrics["grad_norm"] == 0.0
    assert metrics["groups_with_contrast/agentloop"] == metrics["grad_norm/agentloop"] == 0
    assert counted_metrics["groups_with_contrast/agentloop"] == 1
    assert counted_metrics["groups/agentloop"] == 2
    assert ((counted - base * 2 / 3).norm() / base.norm()).item() < 1e-5
    assert ((dropped - base).norm() / base.norm()).item() < 1e-5


def with_subagent(name: str, reward: float) -> Rollout:
    """Two main calls of 3 and 1 tokens, and a sub-agent's call of 2 in between."""

    def call(index: int, sampled: int, **fields: object) -> ModelCall:
        first_id = 10 * index + len(name)
        return ModelCall(
            id=f"c{index}",
            rollout_id=name,
            index=index,
            sampled_ids=tuple(range(first_id, first_id + sampled)),
            logprobs=(-1.0,) * sampled,
            delivery=Delivery.DELIVERED,
            **fields,
        )

    first = call(1, 3, environment_ids=(50, 51))
    side = call(2, 2, environment_ids=(52,), role=CallRole.SUBAGENT, agent="helper")
    rest = {"environment_ids": (53,), "parent_call": "c1", "parent_len": 5, "continues": ("c1",)}
    calls = (first, side, call(3, 1, **rest))
    return Rollout(id=name, key=GroupKey("t", "h"), calls=calls, score=Score(value=reward))


class Noting(Grpo):
    """Keeps the edges it is given: (rollout, advantage, weight), in their order."""

    def loss(self, edges):
        columns = (edges.rollout, edges.advantage, edges.weight)
        self.edges = [
            (rollout, round(advantage, 5), round(weight, 6))
            for rollout, advantage, weight in zip(*(c.tolist() for c in columns), strict=True)
        ]
        return super().loss(edges)


@pytest.mark.parametrize(("credit", "tokens"), [(0.0, 4), (1.0, 6), (0.5, 6)])
def test_edges_of_a_rollout_with_a_subagent_by_hand(policy, credit, tokens):
    """Rewards 1 and 0: Â = ±1. G = 2, one group: a token weighs 1/(2·T_i), whatever its credit."""
    rollouts = [with_subagent("won", 1.0), with_subagent("lost", 0.0)]
    groups = group_rollouts(rollouts, 2, Pruning(branch_credit=credit)).groups
    noting = Noting(GrpoConfig())

    metrics = update(policy(), groups, noting, UpdateSettings())

    weight = round(1 / (2 * tokens), 6)
    main = [(n, sign, weight) for n, sign in ((0, 1.0), (1, -1.0)) for _ in range(4)]
    side = [(n, sign * credit, weight) for n, sign in ((0, 1.0), (1, -1.0)) for _ in range(2)]
    assert sorted(noting.edges) == sorted(main + (side if credit else []))
    assert metrics["tokens"] == 2 * tokens
    assert [tree.trained_tokens for tree in groups[0].trees] == [tokens, tokens]


@pytest.mark.parametrize("layout", list(Layout))
def test_a_discount_moves_the_weights_by_its_share(policy, layout):
    """The gradient is linear in the credit: half-way between none and the whole, at equal T_i."""
    rollouts = [with_subagent("won", 1.0), with_subagent("lost", 0.0)]

    def effect(credit):
        tested = policy()
        tested.layout = layout
        return moved(tested, group_rollouts(rollouts, 2, Pruning(branch_credit=credit)).groups)[0]

    quarter, half, whole = effect(0.25), effect(0.5), effect(1.0)
    assert ((half - quarter) - (whole - half) / 2).norm() < 1e-4 * whole.norm()
    assert (whole - half).norm() > 0.01 * whole.norm()


def test_group_of_one_is_dropped_and_counted(policy, tree, group, mixed_groups):
    single = group("agentloop", [tree("c0", RUNS)], [1.0], task="single")
    base, _ = moved(policy(), mixed_groups)

    got, metrics = moved(policy(), [*mixed_groups, single])

    assert metrics["groups_dropped"] == 1
    assert torch.equal(got, base)


def test_batch_without_anything_to_train_moves_nothing(policy):
    tested = policy()
    before = weight_hash(tested)

    metrics = update(tested, [], GRPO, UpdateSettings())

    assert weight_hash(tested) == before
    assert (metrics["groups"], metrics["tokens"], metrics["loss"]) == (0, 0, 0)


def test_made_up_logprobs_are_refused_for_a_policy_gradient(policy, mixed_groups):
    with pytest.raises(ConfigError, match="grpo needs the log-probs"):
        update(policy(), mixed_groups, GRPO, UpdateSettings(fake_logprobs=True))


def test_run_stops_when_engine_and_trainer_disagree_for_three_steps(policy, mixed_groups):
    tested = policy(lr=0.0)
    for _ in range(2):
        assert update(tested, mixed_groups, GRPO, UpdateSettings())["logp_gap/mean_abs"] > 0.2

    with pytest.raises(GapError, match="engine and trainer disagree"):
        update(tested, mixed_groups, GRPO, UpdateSettings())


def test_tokens_of_older_weights_do_not_raise_the_alarm(policy, mixed_groups):
    tested = policy(lr=0.0)
    tested.version = 7

    for _ in range(4):
        metrics = update(tested, mixed_groups, GRPO, UpdateSettings())

    assert "logp_gap/mean_abs_lag_0" not in metrics


def test_gradient_that_is_not_finite_is_skipped_and_counted(policy, mixed_groups):
    tested = policy()
    before = weight_hash(tested)
    group = mixed_groups[1]
    infinite = [
        replace(
            tree,
            nodes=tuple(replace(n, logprobs=(float("nan"),) * len(n.logprobs)) for n in tree.nodes),
        )
        for tree in group.trees
    ]

    metrics = update(tested, [replace(group, trees=tuple(infinite))], GRPO, UpdateSettings())

    assert metrics["steps_skipped"] == 1
    assert weight_hash(tested) == before


def test_reference_policy_pulls_the_policy_back(policy, model, mixed_groups):
    def kl(reference_seed, estimator):
        tested = policy(seed=0)
        tested.reference = model(seed=reference_seed).requires_grad_(False)
        optimizer = Grpo(GrpoConfig(beta=1.0, kl=estimator))
        return update(tested, mixed_groups, optimizer, UpdateSettings())["kl_ref"]

    for estimator in ("exact", "k2", "k3"):
        assert kl(9, estimator) > 0.01
        assert kl(0, estimator) == pytest.approx(0.0, abs=1e-6)


def test_a_policy_that_lacks_what_the_optimizer_reads_is_refused(policy, mixed_groups):
    with pytest.raises(ValueError, match="grpo reads a reference"):
        update(policy(), mixed_groups, Grpo(GrpoConfig(beta=1.0)), UpdateSettings())
    with pytest.raises(ValueError, match="ppo asks for a critic"):
        update(policy(), mixed_groups, Ppo(PpoConfig()), UpdateSettings())
