import pytest
import torch
from pydantic import ValidationError

from mixharness.errors import ConfigError
from mixharness.optimizer import Edges
from mixharness.testing import OptimizerContract
from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig, Sft, SftConfig

THREE = [(-1, "e", 3), (0, "s", 2), (1, "e", 1), (2, "s", 1), (3, "e", 1), (4, "s", 1)]
FORKED = [(-1, "e", 4), (0, "s", 2), (1, "e", 2), (2, "s", 3), (1, "e", 1), (4, "s", 2)]
"""Three spans: the second and the third both continue the first."""


class TestPpoContract(OptimizerContract):
    @pytest.fixture
    def component(self):
        return Ppo(PpoConfig())


class TestDiscountedPpoContract(OptimizerContract):
    @pytest.fixture
    def component(self):
        return Ppo(PpoConfig(gamma=0.9, lam=0.8))


class TestGrpoContract(OptimizerContract):
    @pytest.fixture
    def component(self):
        return Grpo(GrpoConfig())


class TestSftContract(OptimizerContract):
    @pytest.fixture
    def component(self):
        return Sft(SftConfig())


def along(reward, values, gamma=1.0, lam=1.0):
    """Add up Σ_l (γλ)^l δ_t+l term by term, as the paper writes it, over one branch."""
    following = [*values[1:], 0.0]
    paid = [0.0] * (len(values) - 1) + [reward]
    deltas = [r + gamma * n - v for r, n, v in zip(paid, following, values, strict=True)]
    return [
        sum((gamma * lam) ** n * delta for n, delta in enumerate(deltas[t:]))
        for t in range(len(deltas))
    ]


def test_on_a_fork_every_branch_gives_exactly_the_reward_minus_the_value(tree, group):
    values = [0.5, -0.25, 0.125, 0.75, 0.0625, 1.5, -2.0]
    forked = group("a", [tree("r0", FORKED)], [0.75])

    (got,) = Ppo(PpoConfig()).advantages(forked, [values])

    assert got == [0.75 - value for value in values]
    # These values are binary fractions: the sums over either branch are exact as well.
    first, second = along(0.75, values[:5]), along(0.75, values[:2] + values[5:])
    assert got == first + second[2:]
    assert first[:2] == second[:2]
    assert Ppo(PpoConfig()).returns(forked) == [[0.75] * 7]


def test_three_spans_in_a_row_by_hand(tree, group):
    """γ = λ = 1/2. The environment between the spans is no step: n(t) skips it.

    δ = [½·¼ - ½, ½·¾ - ¼, ½·½ - ¾, 1 - ½] = [-3/8, 1/8, -1/2, 1/2], and from behind, with γλ = ¼,
    Â = [-3/8 + ¼·(1/32), 1/8 + ¼·(-3/8), -1/2 + ¼·(1/2), 1/2].
    """
    chain = group("a", [tree("r0", THREE)], [1.0])
    optimizer = Ppo(PpoConfig(gamma=0.5, lam=0.5))

    assert optimizer.advantages(chain, [[0.5, 0.25, 0.75, 0.5]]) == [
        [-0.3671875, 0.03125, -0.375, 0.5]
    ]
    assert optimizer.returns(chain) == [[0.125, 0.25, 0.5, 1.0]]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.99, 1.0), (0.9, 0.8), (1.0, 0.0)])
def test_a_row_of_spans_equals_the_papers_sum(tree, group, gamma, lam):
    values = torch.randn(4, generator=torch.Generator().manual_seed(1)).tolist()

    (got,) = Ppo(PpoConfig(gamma=gamma, lam=lam)).advantages(
        group("a", [tree("r0", THREE)], [0.7]), [values]
    )

    assert got == pytest.approx(along(0.7, values, gamma, lam), abs=1e-12)


@pytest.mark.parametrize("key", ["lam", "gamma"])
def test_discounting_a_fork_is_refused_with_the_reason(tree, group, key):
    pair = group("a", [tree("r0", THREE), tree("r1", FORKED)], [1.0, 0.0])
    optimizer = Ppo(PpoConfig(**{key: 0.9}))

    for ask in (lambda: optimizer.returns(pair), lambda: optimizer.advantages(pair, [[0.0]] * 2)):
        with pytest.raises(ConfigError) as refused:
            ask()
        ((where, message),) = refused.value.problems
        assert where == f"optimizer.{key}"
        assert message.startswith("rollout r1 forks before call call-5: its tokens have more than")
        assert message.endswith("set gamma = lam = 1, with which every future counts alike")


@pytest.mark.parametrize(
    "runs",
    [
        [(-1, "e", 3), (0, "s", 2), (-1, "e", 2), (2, "s", 1)],  # the second began anew: compaction
        [(-1, "e", 3), (0, "s", 2), (0, "s", 2)],
    ],
)
def test_beginnings_and_siblings_are_forks(tree, group, runs):
    with pytest.raises(ConfigError, match="rollout r forks before call"):
        Ppo(PpoConfig(lam=0.5)).returns(group("a", [tree("r", runs)], [1.0]))


def test_an_untrained_branch_is_no_fork(tree, group):
    runs = [*THREE, (1, "u", 3), (0, "u", 2), (5, "s", 1)]
    got = Ppo(PpoConfig(gamma=0.5)).returns(group("a", [tree("r", runs)], [1.0]))
    assert got == [[0.0625, 0.125, 0.25, 0.5, 1.0]]


def test_advantages_without_values_are_refused(tree, group):
    with pytest.raises(ValueError, match="needs a value for every trained token"):
        Ppo(PpoConfig()).advantages(group("a", [tree("r", THREE)], [1.0]))


def test_loss_by_hand():
    """Three spans of one rollout (2 + 1 + 1 tokens) at hand-picked ratios ρ and corrections w."""
    ratio = torch.tensor([1.0, 1.5, 0.5, 1.1])
    edges = Edges(
        logp=(torch.full((4,), -1.0) + ratio.log()).requires_grad_(),
        logp_old=torch.full((4,), -1.0),
        logp_rollout=-1.0 - torch.tensor([1.0, 1.0, 0.5, 3.0]).log(),
        logp_ref=None,
        entropy=torch.zeros(4),
        advantage=torch.tensor([0.5, 1.0, -2.0, 0.25]),
        weight=torch.full((4,), 0.25),
        rollout=torch.zeros(4, dtype=torch.int64),
    )

    output = Ppo(PpoConfig()).loss(edges)
    output.loss.backward()

    # token: w · min(ρÂ, clip(ρ)Â)
    # 0: 1 · 0.5     1: 1 · 1.2 (clipped)     2: 0.5 · 0.8 · -2 (clipped)     3: 2 · 1.1 · 0.25
    assert output.loss.item() == pytest.approx(-0.25 * (0.5 + 1.2 - 0.8 + 0.55), rel=1e-6)
    # d/dlogp of an unclipped token is -weight · w · ρ · Â.
    assert edges.logp.grad.tolist() == pytest.approx([-0.125, 0.0, 0.0, -0.1375], rel=1e-6)
    assert output.metrics == {"ratio_clipped": 0.5, "correction_limited": 0.25}


def test_the_config_becomes_the_critics_settings():
    config = PpoConfig(critic="shared", critic_lr=1e-3, value_coefficient=0.1)
    settings = Ppo(config).critic
    assert (settings.trunk, settings.lr, settings.coefficient) == ("shared", 1e-3, 0.1)
    assert (settings.pretraining_steps, settings.pretraining_passes) == (1, 4)
    for wrong in ({"gamma": 1.1}, {"lam": -0.1}, {"critic": "none"}, {"eps": 0.2}):
        with pytest.raises(ValidationError):
            PpoConfig(**wrong)
