"""Rule 5: a group has exactly one (task, harness); no estimator can see two harnesses."""

from math import sqrt

import pytest

from mixharness import GroupKey, RolloutGroup
from mixharness_trainer.groups import group_rollouts
from mixharness_trainer.optimizers import Grpo, GrpoConfig

pytestmark = pytest.mark.anyio


async def test_baselines_are_taken_within_each_pair(bench):
    rollouts = []
    for label, rewards in (("all_tools", (1.0, 0.0)), ("bash_only", (1.0, 1.0, 0.0))):
        for sample, reward in enumerate(rewards):
            harness = bench.agentloop(**({"tools": ("bash",)} if label == "bash_only" else {}))
            turns = [bench.call("cp name.txt answer.txt")] if reward else []
            engine = bench.engine(*turns, "Done.")
            rollouts.append(await bench.run(engine, harness=harness, label=label, sample=sample))
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0, 1.0, 1.0, 0.0]

    mixed = group_rollouts(rollouts, min_group_size=2).groups
    keys = [GroupKey("greet", "all_tools"), GroupKey("greet", "bash_only")]
    assert [group.key for group in mixed] == keys
    assert all({rollout.key for rollout in group.rollouts} == {group.key} for group in mixed)
    by_hand = [[1, -1], [1 / sqrt(2), 1 / sqrt(2), -sqrt(2)]]
    for group, expected in zip(mixed, by_hand, strict=True):
        advantages = Grpo(GrpoConfig()).advantages(group)
        assert [values[0] for values in advantages] == pytest.approx(expected, abs=1e-4)

    trees = mixed[0].trees + mixed[1].trees
    with pytest.raises(ValueError, match="a group has one GroupKey"):
        RolloutGroup(keys[0], tuple(rollouts), trees)
