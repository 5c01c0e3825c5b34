"""Whole updates with every number written out: three spans a rollout, and a policy of equal odds.

Its embeddings are 0, so that each of the 64 tokens has probability 1/64 at any temperature, and
log π = -ln 64 whatever was read before. The engine is said to have sampled at 1/64 · 1/r, so that
the correction is min(r, 2); at the first update π_θ = π_old and ρ = 1.
"""

import math
from dataclasses import replace

import pytest
import torch

from mixharness.optimizer import CriticSettings
from mixharness_trainer.critic import Critic
from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig, Sft, SftConfig
from mixharness_trainer.update import UpdateSettings, update

LONG = [(-1, "e", 3), (0, "s", 2), (1, "e", 1), (2, "s", 1), (3, "e", 1), (4, "s", 1)]
FORKED = [(-1, "e", 3), (0, "s", 2), (1, "e", 1), (2, "s", 3), (1, "e", 1), (4, "s", 1)]
LN64 = math.log(64)


@pytest.fixture
def even(policy):
    """A policy of equal odds that a step of size 0 leaves where it is."""
    made = policy(lr=0.0)
    with torch.no_grad():
        made.model.get_input_embeddings().weight.zero_()
    return made


@pytest.fixture
def pair(tree, group):
    """A row of 2 + 1 + 1 tokens with reward 1, and a fork of 2 + 3 and 2 + 1 with reward 0.2."""
    ratios = {"won": [1, 4, 0.5, 1], "lost": [1, 1, 0.5, 0.5, 0.5, 3]}

    def sampled(name, runs):
        left = iter(-LN64 - math.log(ratio) for ratio in ratios[name])
        built = tree(name, runs)
        nodes = [
            replace(node, logprobs=tuple(next(left) for _ in node.ids)) if node.trained else node
            for node in built.nodes
        ]
        return replace(built, nodes=tuple(nodes))

    return group("a", [sampled("won", LONG), sampled("lost", FORKED)], [1.0, 0.2])


def test_grpo(even, pair):
    """The mean is 0.6 and the population's deviation 0.4: Â = ±1 (but for ε = 1e-6).

    w = (1, 2, ½, 1), of mean 9/8, and (1, 1, ½, ½, ½, 2), of mean 11/12; 1/G = ½:
    L = -½·(9/8 - 11/12) = -5/48.
    """
    metrics = update(even, [pair], Grpo(GrpoConfig()), UpdateSettings())

    assert metrics["loss"] == pytest.approx(-5 / 48, rel=1e-4)
    # Ten tokens: |log r| is 0, ln 4, ln 2, 0 and 0, 0, ln 2 three times, ln 3.
    gap = (math.log(4) + 4 * math.log(2) + math.log(3)) / 10
    assert metrics["logp_gap/mean_abs"] == pytest.approx(gap, rel=1e-5)
    assert metrics["logp_gap/clipped"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("correction", "loss", "limited"),
    [
        # Inside [½, 2]: (1, 0, ½, 1), of mean 5/8, and (1, 1, ½, ½, ½, 0), of mean 7/12.
        ("mask", -(5 / 8 - 7 / 12) / 2, 0.2),
        # Products: min(2, 2) = 2, and 3/8.
        ("sequence", -(2 - 3 / 8) / 2, 0.4),
        ("off", 0.0, 0.0),
    ],
)
def test_grpo_with_other_corrections(even, pair, correction, loss, limited):
    optimizer = Grpo(GrpoConfig(correction=correction))
    metrics = update(even, [pair], optimizer, UpdateSettings())
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert metrics["correction_limited"] == pytest.approx(limited)


def test_ppo(even, pair):
    """V = ½ everywhere: Â = R - V = ½ on four tokens and -0.3 on six, G = R.

    L = -(½·(1 + 2 + ½ + 1) - 0.3·(1 + 1 + ½ + ½ + ½ + 2)) / 10 = -(2.25 - 1.65) / 10.
    The value loss is (4·(½ - 1)² + 6·(½ - 0.2)²) / 10 = 0.154; the correction has no part in it.
    """
    even.critic = Critic.new(CriticSettings(lr=0.0), even.model)
    even.critic.head.bias.data.fill_(0.5)

    metrics = update(even, [pair], Ppo(PpoConfig()), UpdateSettings())

    assert metrics["loss"] == pytest.approx(-0.06, rel=1e-4)
    assert metrics["critic/loss"] == pytest.approx(0.154, rel=1e-5)
    # The gradient by the head's bias is ½ · 2 · (4·(½ - 1) + 6·(½ - 0.2)) / 10 = -0.02, and the
    # only other one is 0: where all embeddings are 0, so are the hidden states under the head.
    even.critic = Critic.new(CriticSettings(lr=0.0, trunk="shared"), even.model)
    even.critic.head.bias.data.fill_(0.5)
    shared = update(even, [pair], Ppo(PpoConfig()), UpdateSettings())
    assert shared["critic/loss"] == pytest.approx(0.154, rel=1e-5)
    assert shared["critic/grad_norm"] == pytest.approx(0.02, rel=1e-4)


def test_ppo_per_group(even, pair):
    """A token weighs 1/(2·T_i): L = -½·(2.25/4 - 1.65/6), value loss ½·(0.25 + 0.09)."""
    even.critic = Critic.new(CriticSettings(lr=0.0), even.model)
    even.critic.head.bias.data.fill_(0.5)

    metrics = update(even, [pair], Ppo(PpoConfig()), UpdateSettings(loss_normalization="group"))

    assert metrics["loss"] == pytest.approx(-(2.25 / 4 - 1.65 / 6) / 2, rel=1e-4)
    assert metrics["critic/loss"] == pytest.approx(0.17, rel=1e-5)


def test_sft(even, pair):
    """Only the first passes, and each of its four tokens costs ln 64; both pass at 0.2."""
    strict = update(even, [pair], Sft(SftConfig()), UpdateSettings())
    mild = update(even, [pair], Sft(SftConfig(pass_threshold=0.2)), UpdateSettings())

    assert (strict["tokens"], mild["tokens"]) == (4, 10)
    assert strict["loss"] == pytest.approx(LN64, rel=1e-6)
    assert mild["loss"] == pytest.approx(LN64, rel=1e-6)
    assert strict["rollouts"] == 2
