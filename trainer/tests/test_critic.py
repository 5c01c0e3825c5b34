import pytest
import torch

from mixharness.optimizer import CriticSettings
from mixharness_trainer.attention import Layout
from mixharness_trainer.critic import Critic
from mixharness_trainer.optimizers import Ppo, PpoConfig
from mixharness_trainer.policy import optimizer_hash, weight_hash
from mixharness_trainer.update import UpdateSettings, update
from mixharness_trainer.values import group_values, value_metrics

TRUNKS = ["separate", "shared"]


def with_critic(policy, seed=5, **settings):
    """Give the policy a critic whose head says something, and whose trunk is not the policy's."""
    policy.critic = Critic.new(CriticSettings(**settings), policy.model)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.critic.named_parameters().values():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise)
    return policy


def separate_values(policy, tree):
    """Return a rollout's values from a plain forward pass over every root-to-leaf path."""
    critic = policy.critic
    trunk = policy.model.model if critic.trunk is None else critic.trunk
    found = {}
    for leaf in range(len(tree.nodes)):
        path, at = [], leaf
        while at >= 0:
            path.insert(0, at)
            at = tree.nodes[at].parent
        ids = [token for index in path for token in tree.nodes[index].ids]
        hidden = trunk(input_ids=torch.tensor([ids])).last_hidden_state[0]
        said = (hidden @ critic.head.weight[0] + critic.head.bias).tolist()
        for index in path:
            node = tree.nodes[index]
            if node.trained:
                found[index] = said[node.depth - 1 : node.depth - 1 + len(node.ids)]
    return [value for index in sorted(found) for value in found[index]]


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("max_tokens", [30, 10_000])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_packed_values_equal_those_of_separate_paths(
    policy, mixed_groups, trunk, max_tokens, layout
):
    tested = with_critic(policy(), trunk=trunk)
    tested.layout = layout
    with torch.no_grad():
        expected = [[separate_values(tested, tree) for tree in g.trees] for g in mixed_groups]

    got = group_values(tested, mixed_groups, max_tokens)

    for rows, wanted in zip(got, expected, strict=True):
        assert [len(row) for row in rows] == [len(row) for row in wanted]
        for row, right in zip(rows, wanted, strict=True):
            assert row == pytest.approx(right, abs=3e-5)
    assert torch.tensor(got[0][0]).std() > 0.1


def test_a_new_critic_says_0_and_its_trunk_is_a_copy(policy, mixed_groups):
    tested = policy()
    tested.critic = Critic.new(CriticSettings(), tested.model)
    own = dict(tested.critic.trunk.named_parameters())
    copied = dict(tested.model.model.named_parameters())

    assert all(torch.equal(own[name], copied[name]) for name in copied)
    assert not {p.data_ptr() for p in own.values()} & {p.data_ptr() for p in copied.values()}
    values = group_values(tested, mixed_groups, 1000)
    assert {v for rows in values for row in rows for v in row} == {0.0}


@pytest.mark.parametrize("trunk", TRUNKS)
def test_pretraining_moves_the_critic_alone_and_ends(policy, mixed_groups, trunk):
    config = PpoConfig(
        critic=trunk, critic_lr=0.01, value_pretraining_steps=2, value_pretraining_passes=20
    )
    optimizer, tested = Ppo(config), policy()
    tested.critic = Critic.new(optimizer.critic, tested.model)
    before = weight_hash(tested), optimizer_hash(tested)

    first = update(tested, mixed_groups, optimizer, UpdateSettings())
    tested.version = 1  # the rollouts' log-probs are of no policy: no alarm is due from here on
    second = update(tested, mixed_groups, optimizer, UpdateSettings())

    assert weight_hash(tested) == before[0]
    assert optimizer_hash(tested) != before[1]
    assert not tested.adamw.state
    assert first["critic/pretraining"] == second["critic/pretraining"] == 1
    assert second["critic/loss"] < 0.8 * first["critic/loss"]
    assert second["critic/explained_variance"] > first["critic/explained_variance"] == 0
    assert first["tokens"] == 62
    assert first["logp_gap/mean_abs"] > 0
    third = update(tested, mixed_groups, optimizer, UpdateSettings())
    assert third["critic/pretraining"] == 0
    assert weight_hash(tested) != before[0]


@pytest.mark.parametrize("trunk", TRUNKS)
def test_an_update_moves_the_policy_and_the_value_loss_falls(policy, mixed_groups, trunk):
    config = PpoConfig(critic=trunk, critic_lr=0.01, value_pretraining_steps=0)
    optimizer, tested = Ppo(config), policy(lr=3e-3)
    tested.critic = Critic.new(optimizer.critic, tested.model)
    before = weight_hash(tested)
    settings = UpdateSettings(minibatches=2, epochs=2, max_tokens_per_batch=60)

    log = []
    for _ in range(8):
        log.append(update(tested, mixed_groups, optimizer, settings))
        tested.version += 1  # the rollouts' log-probs are of no policy: no alarm is due

    assert weight_hash(tested) != before
    assert log[-1]["critic/loss"] < 0.5 * log[0]["critic/loss"]
    assert log[-1]["critic/explained_variance"] > 0.5
    for label in ("agentloop", "claude_code"):
        assert log[0][f"grad_norm/{label}"] > 0
    assert log[0]["critic/grad_norm"] > 0
    assert log[0]["steps_skipped"] == 0


def test_the_value_loss_reaches_the_policy_only_through_a_shared_trunk(policy, mixed_groups):
    optimizer = Ppo(PpoConfig(value_pretraining_steps=0))

    def moved(trunk, coefficient):
        tested = with_critic(policy(), trunk=trunk, coefficient=coefficient)
        update(tested, mixed_groups, optimizer, UpdateSettings())
        return weight_hash(tested)

    assert moved("separate", 0.1) == moved("separate", 9.0)
    assert moved("shared", 0.1) != moved("shared", 9.0)


def test_learning_rate_0_of_the_policy_moves_the_critic_only(policy, mixed_groups):
    optimizer, tested = Ppo(PpoConfig(value_pretraining_steps=0)), policy(lr=0.0)
    tested.critic = Critic.new(optimizer.critic, tested.model)
    before = weight_hash(tested), optimizer_hash(tested)

    update(tested, mixed_groups, optimizer, UpdateSettings())

    assert weight_hash(tested) == before[0]
    assert optimizer_hash(tested) != before[1]


def test_single_rollouts_and_unanimous_groups_teach_a_critic(policy, tree, group):
    runs = [(-1, "e", 5), (0, "s", 4), (1, "e", 2), (2, "s", 3)]
    groups = [group("a", [tree("r0", runs)], [0.0]), group("b", [tree("r1", runs, 1)], [0.0])]
    optimizer, tested = Ppo(PpoConfig(value_pretraining_steps=0)), with_critic(policy())

    metrics = update(tested, groups, optimizer, UpdateSettings(drop_unanimous=True))

    assert (metrics["groups"], metrics["groups_dropped"], metrics["tokens"]) == (2, 0, 14)
    assert metrics["critic/loss"] > 0


@pytest.mark.parametrize("trunk", TRUNKS)
def test_what_is_saved_comes_back(policy, mixed_groups, trunk):
    optimizer = Ppo(PpoConfig(critic=trunk, value_pretraining_steps=0))
    tested = with_critic(policy(), trunk=trunk)
    update(tested, mixed_groups, optimizer, UpdateSettings())
    saved = {name: tensor.clone() for name, tensor in tested.critic.tensors().items()}

    fresh = policy(seed=8)
    fresh.critic = Critic.new(CriticSettings(trunk=trunk), fresh.model)
    fresh.critic.restore(saved)

    again = fresh.critic.tensors()
    assert again.keys() == saved.keys() >= {"weight.head.weight", "adamw.head.bias.exp_avg"}
    assert all(torch.equal(again[name], saved[name]) for name in saved)
    assert any(name.startswith("weight.trunk.") for name in saved) == (trunk == "separate")


def test_a_gradient_that_is_not_finite_moves_no_critic(policy):
    tested = with_critic(policy())
    tested.critic.head.weight.grad = torch.full((1, 32), float("nan"))
    before = optimizer_hash(tested)

    assert not torch.isfinite(torch.tensor(tested.critic.descend(1.0)))
    assert optimizer_hash(tested) == before


def test_explained_variance_by_hand():
    """Var(G) = 1/4 and G - V = (-1/2, 0, 0, 1/2), whose variance is 1/8: half is explained."""
    metrics = value_metrics([[[0.5, 0.0], [1.0, 0.5]]], [[[0.0, 0.0], [1.0, 1.0]]])
    assert metrics == {"critic/value": 0.5, "critic/explained_variance": 0.5}
    assert value_metrics([[[0.5]]], [[[1.0]]])["critic/explained_variance"] == 0.0
    assert value_metrics([], []) == {}
