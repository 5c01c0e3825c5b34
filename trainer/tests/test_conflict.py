"""The gradient harness by harness: its sum is the step's, and its cosines are right."""

import pytest
import torch

from mixharness.optimizer import CriticSettings
from mixharness_trainer.conflict import GradientShares
from mixharness_trainer.critic import Critic
from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig
from mixharness_trainer.update import UpdateSettings, update


class Recorder(torch.optim.SGD):
    """Plain gradient descent that keeps each gradient it is given."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=1e-3)
        self.gradients = []

    def step(self, closure=None):
        grads = [p.grad.flatten() for p in self.param_groups[0]["params"]]
        self.gradients.append(torch.cat(grads))
        return super().step(closure)


def test_cosines_by_hand():
    """(3, 4, 0) and (4, 3, 0) meet at 24/25; what has no gradient has no direction."""
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    shares = GradientShares(parameters)
    for label, gradient in (("b", [3.0, 4.0]), ("a", [4.0, 3.0]), ("c", [0.0, 0.0])):
        parameters[0].grad = torch.tensor(gradient)
        shares.take(label)
        assert parameters[0].grad is None
    parameters[1].grad = torch.tensor([5.0])
    shares.take("d")

    assert shares.put_back() == pytest.approx({"a/b": 0.96, "a/d": 0.0, "b/d": 0.0})
    assert [p.grad.tolist() for p in parameters] == [[7.0, 7.0], [5.0]]


def gradients(policy, groups, optimizer, **settings):
    """Return the gradients of an update's steps and its figures."""
    tested = policy()
    if optimizer.critic is not None:
        tested.critic = Critic.new(CriticSettings(trunk="shared"), tested.model)
        tested.critic.head.weight.data.fill_(0.1)
    tested.adamw = Recorder(list(tested.model.parameters()))
    return tested.adamw.gradients, update(tested, groups, optimizer, UpdateSettings(**settings))


@pytest.mark.parametrize(
    "optimizer", [Grpo(GrpoConfig()), Ppo(PpoConfig(critic="shared", value_pretraining_steps=0))]
)
def test_apart_the_step_is_the_same_and_the_cosine_that_of_two_updates(
    policy, mixed_groups, optimizer
):
    settings = {"max_grad_norm": 1e9, "max_tokens_per_batch": 60}
    (together,), plain = gradients(policy, mixed_groups, optimizer, **settings)

    (apart,), measured = gradients(
        policy, mixed_groups, optimizer, gradient_cosine_every=1, **settings
    )
    alone = [gradients(policy, [g], optimizer, **settings)[0][0] for g in mixed_groups]

    assert (apart - together).norm() <= 1e-5 * together.norm()
    assert measured["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    assert not any(name.startswith("gradient_cosine") for name in plain)
    cosine = torch.nn.functional.cosine_similarity(*alone, dim=0).item()
    assert measured["gradient_cosine/agentloop/claude_code"] == pytest.approx(cosine, abs=1e-5)
    assert -1 < cosine < 0.99


def test_it_is_measured_every_so_many_updates_and_between_two_harnesses(policy, mixed_groups):
    key, tested = "gradient_cosine/agentloop/claude_code", policy()
    settings = UpdateSettings(gradient_cosine_every=2, minibatches=2, epochs=2)
    found = []
    for _ in range(3):
        found.append(key in update(tested, mixed_groups, Grpo(GrpoConfig()), settings))
        tested.version += 1  # the rollouts' log-probs are of no policy: no alarm is due
    # Two minibatches of one group each: no step of the first update holds both harnesses.
    assert found == [False] * 3

    settings = UpdateSettings(gradient_cosine_every=2, epochs=2)
    tested = policy()
    for _ in range(3):
        found.append(key in update(tested, mixed_groups, Grpo(GrpoConfig()), settings))
        tested.version += 1
    assert found[3:] == [True, False, True]
    tested = policy()
    assert key not in update(tested, mixed_groups[:1], Grpo(GrpoConfig()), settings)
