import pytest
import torch

from mixharness_trainer.optimizers import Sft, SftConfig
from mixharness_trainer.update import UpdateSettings, update

RUNS = [(-1, "e", 5), (0, "s", 4), (1, "e", 2), (2, "s", 3)]


def test_only_passing_rollouts_are_imitated(tree, group):
    pair = group("a", [tree("r0", RUNS), tree("r1", RUNS)], [1.0, 0.5])

    assert Sft(SftConfig()).advantages(pair) == [[1.0] * 7, [0.0] * 7]
    assert Sft(SftConfig(pass_threshold=0.5)).advantages(pair) == [[1.0] * 7, [1.0] * 7]


def test_loss_is_the_mean_cross_entropy_of_passing_tokens(tree, group, policy):
    trees = [tree(f"r{n}", RUNS, seed=n) for n in range(3)]
    tested = policy()
    expected = []
    for built in trees[:2]:
        ids = torch.tensor([[token for node in built.nodes for token in node.ids]])
        logits = tested.model(input_ids=ids).logits[0].detach()
        start = 0
        for number, node in enumerate(built.nodes):
            if node.trained:
                temperature = 0.7 if number % 2 else 1.0
                rows = logits[start - 1 : start - 1 + len(node.ids)] / temperature
                expected.append(rows.log_softmax(-1).gather(1, torch.tensor(node.ids)[:, None]))
            start += len(node.ids)

    metrics = update(
        tested, [group("a", trees, [1.0, 1.0, 0.0])], Sft(SftConfig()), UpdateSettings()
    )

    assert metrics["tokens"] == 14
    assert metrics["loss"] == pytest.approx(-torch.cat(expected).mean().item(), rel=1e-5)


def test_rollouts_with_made_up_logprobs_can_be_imitated(tree, group, policy):
    groups = [group("a", [tree("r0", RUNS)], [1.0])]
    tested = policy(lr=3e-3)
    settings = UpdateSettings(fake_logprobs=True)

    losses = [update(tested, groups, Sft(SftConfig()), settings)["loss"] for _ in range(40)]

    assert losses[-1] < 0.2 * losses[0]
