"""Rule 6: what is excluded from the loss is excluded from the baseline; a failure is no reward."""

import pytest

from mixharness import FailureKind, RolloutGroup
from mixharness.tree import build_tree, prune
from mixharness_trainer.groups import group_rollouts
from mixharness_trainer.optimizers import Grpo, GrpoConfig

pytestmark = pytest.mark.anyio


async def test_a_rollout_that_the_engine_failed_counts_nowhere(bench):
    solves = bench.engine(bench.call("cp name.txt answer.txt"), "Done.")
    solved = await bench.run(solves, sample=0)
    missed = await bench.run(bench.engine("Done."), sample=1)
    failed = await bench.run(bench.dead(solves.config), sample=2)
    assert failed.failure.kind is FailureKind.ENGINE_ERROR
    assert failed.score is None
    with pytest.raises(ValueError, match="has no score"):
        _ = failed.reward

    grouped = group_rollouts([solved, failed, missed], min_group_size=2)
    (group,) = grouped.groups
    assert group.rollouts == (solved, missed)
    assert grouped.dropped == {"engine_error": 1}
    # With the failure as a third reward of 0 these would be 1.41 and -0.71.
    advantages = Grpo(GrpoConfig()).advantages(group)
    assert [values[0] for values in advantages] == pytest.approx([1, -1], abs=1e-4)

    tree = build_tree(failed.calls, prune(failed.calls))
    with pytest.raises(ValueError, match="may not enter a baseline"):
        RolloutGroup(group.key, (*group.rollouts, failed), (*group.trees, tree))
