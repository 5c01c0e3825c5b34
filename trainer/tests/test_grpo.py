import math
import statistics
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from mixharness.errors import ConfigError
from mixharness.optimizer import Edges
from mixharness_trainer.optimizers import Grpo, GrpoConfig

RUNS = [(-1, "e", 3), (0, "s", 2), (1, "e", 1), (2, "s", 1), (3, "e", 1), (4, "s", 1)]


def make_edges(**changes):
    """Three spans of one rollout (2 + 1 + 1 tokens) at hand-picked ratios."""
    ratio = torch.tensor([1.0, 1.5, 0.5, 1.1])
    values = {
        "logp": (torch.full((4,), -1.0) + ratio.log()).requires_grad_(),
        "logp_old": torch.full((4,), -1.0),
        "logp_rollout": -1.0 - torch.tensor([1.0, 1.0, 0.5, 3.0]).log(),
        "logp_ref": None,
        "entropy": torch.zeros(4),
        "advantage": torch.tensor([1.0, 1.0, -2.0, 1.0]),
        "weight": torch.tensor([0.25, 0.25, 0.5, 1.0]),
        "rollout": torch.zeros(4, dtype=torch.int64),
    }
    return Edges(**(values | changes))


def test_advantages_are_those_of_each_pair_by_hand(tree, group):
    trees = [tree(f"r{n}", RUNS, seed=n) for n in range(6)]
    left = group("a", trees[:4], [1.0, 0.0, 0.0, 1.0])
    right = group("b", trees[4:], [0.2, 0.6])

    got = [Grpo(GrpoConfig()).advantages(part) for part in (left, right)]

    assert [values[0] for values in got[0]] == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert [values[0] for values in got[1]] == pytest.approx([-1, 1], abs=1e-4)
    assert [len(values) for part in got for values in part] == [4] * 6
    # Pooling both harnesses of the task would give other numbers.
    pooled = [1.0, 0.0, 0.0, 1.0, 0.2, 0.6]
    assert (1.0 - statistics.fmean(pooled)) / statistics.pstdev(pooled) != pytest.approx(1, abs=0.1)


def test_scale_none_only_centres(tree, group):
    pair = group("a", [tree("r0", RUNS), tree("r1", RUNS)], [0.75, 0.25])

    assert Grpo(GrpoConfig(scale="none")).advantages(pair) == [[0.25] * 4, [-0.25] * 4]


@pytest.mark.parametrize(("min_contrast", "first"), [(1e-6, 1.0), (0.05, 0.0)])
def test_contrast_below_the_minimum_is_noise(tree, group, min_contrast, first):
    pair = group("a", [tree("r0", RUNS), tree("r1", RUNS)], [0.52, 0.48])

    advantages = Grpo(GrpoConfig(min_contrast=min_contrast)).advantages(pair)

    assert advantages[0][0] == pytest.approx(first, abs=1e-3)


def test_loss_by_hand():
    edges = make_edges()

    output = Grpo(GrpoConfig()).loss(edges)
    output.loss.backward()

    # token: ratio, advantage, correction -> objective
    # 0: 1.0, 1, 1 -> 1      1: 1.5, 1, 1 -> clipped to 1.2
    # 2: 0.5, -2, 0.5 -> min(-1, 0.8 * -2) * 0.5 = -0.8 (clipped)
    # 3: 1.1, 1, min(3, 2) -> 2.2
    expected = -(0.25 * 1 + 0.25 * 1.2 + 0.5 * -0.8 + 1.0 * 2.2)
    assert output.loss.item() == pytest.approx(expected, rel=1e-6)
    # d/dlogp of an unclipped token is -weight * correction * ratio * advantage.
    assert edges.logp.grad.tolist() == pytest.approx([-0.25, 0.0, 0.0, -2.2], rel=1e-6)
    assert output.metrics == {"ratio_clipped": 0.5, "correction_limited": 0.25}


@pytest.mark.parametrize(("kl", "estimate"), [("k2", 0.3**2 / 2), ("k3", math.exp(0.3) - 0.3 - 1)])
def test_kl_stands_inside_the_correction(kl, estimate):
    edges = make_edges()
    edges = make_edges(logp_ref=edges.logp.detach() + 0.3)

    plain = Grpo(GrpoConfig()).loss(edges).loss.item()
    output = Grpo(GrpoConfig(beta=0.1, kl=kl)).loss(edges)

    weighted = 0.25 * 1 + 0.25 * 1 + 0.5 * 0.5 + 1.0 * 2
    assert output.loss.item() - plain == pytest.approx(0.1 * estimate * weighted, rel=1e-4)
    assert output.metrics["kl_ref"] == pytest.approx(estimate, rel=1e-4)


def test_kl_without_a_reference_is_refused():
    with pytest.raises(ConfigError, match="needs a reference policy"):
        Grpo(GrpoConfig(beta=0.1)).loss(make_edges())


def test_config_refuses_unknown_keys_and_values():
    with pytest.raises(ValidationError, match="eps"):
        GrpoConfig(eps=0.2)
    with pytest.raises(ValidationError, match="eps_low"):
        GrpoConfig(eps_low=1.5)


def test_importing_and_taking_advantages_needs_no_torch():
    code = "import sys, mixharness_trainer.optimizers; assert 'torch' not in sys.modules"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
