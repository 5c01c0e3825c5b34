"""Rule 7: a rollout's rows fall in one minibatch of each epoch; forks do not change its weight."""

from collections import Counter

import pytest
import torch

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness_trainer.attention import Layout
from mixharness_trainer.groups import group_rollouts
from mixharness_trainer.optimizers import Grpo, GrpoConfig
from mixharness_trainer.policy import Policy, PolicyShape, new_policy
from mixharness_trainer.update import UpdateSettings, update

pytestmark = pytest.mark.anyio

EPOCHS, MINIBATCHES, ROLLOUTS = 2, 2, 4
SMALL = PolicyShape(layers=1, hidden=32, heads=2, kv_heads=1, intermediate=32, context=2048)


class Watching(Grpo):
    """Sums the weight of each rollout's edges, per optimizer step."""

    def __init__(self):
        super().__init__(GrpoConfig())
        self.steps = [Counter()]

    def loss(self, edges):
        for rollout, weight in zip(edges.rollout.tolist(), edges.weight.tolist(), strict=True):
            self.steps[-1][rollout] += weight
        return super().loss(edges)


class Marking(torch.optim.SGD):
    """Says when a minibatch ends."""

    def mark(self, steps):
        self.steps = steps
        return self

    def step(self, closure=None):
        self.steps.append(Counter())


@pytest.mark.parametrize("layout", list(Layout))
async def test_every_rollout_is_whole_and_weighs_the_same(bench, tmp_path, layout):
    rollouts = []
    for label, rewrites in (("forked", True), ("plain", False)):
        for sample, command in enumerate(("cp name.txt answer.txt", "ls")):
            turns = ["In vain."] if rewrites else []
            engine = bench.engine(bench.call(command), *turns, "It is Ada.", "Done.")
            harness = bench.rewriter(rewrites=rewrites)
            rollouts.append(await bench.run(engine, harness=harness, label=label, sample=sample))
    groups = group_rollouts(rollouts, min_group_size=2).groups
    assert len(groups) == MINIBATCHES
    folder = new_policy(tmp_path / "policy", byte_tokenizer(), SMALL, seed=0)
    policy = Policy.load(folder, lr=0.0, device="cpu")
    optimizer = Watching()
    policy.layout = layout
    policy.adamw = Marking(policy.model.parameters()).mark(optimizer.steps)
    settings = UpdateSettings(minibatches=MINIBATCHES, epochs=EPOCHS, max_tokens_per_batch=700)
    update(policy, groups, optimizer, settings)

    *steps, rest = optimizer.steps
    assert (len(steps), rest) == (EPOCHS * MINIBATCHES, Counter())
    for epoch in range(EPOCHS):
        minibatches = steps[epoch * MINIBATCHES : (epoch + 1) * MINIBATCHES]
        seen = Counter(rollout for minibatch in minibatches for rollout in minibatch)
        assert seen == Counter(range(ROLLOUTS))
        weights = sum(minibatches, Counter())
        expected = MINIBATCHES / ROLLOUTS  # each step is scaled up to a whole batch
        assert weights == pytest.approx(dict.fromkeys(range(ROLLOUTS), expected), rel=1e-4)
