"""Groups without contrast give way to fresh ones of their harness, and nothing else does."""

import pytest

from mixharness import Limits
from mixharness.plugins import load_plugins
from mixharness.rollout.types import HarnessSlot
from mixharness.types import Task
from mixharness_trainer.groups import Grouped
from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig
from mixharness_trainer.resample import Resampling, collect_step

TASKS = [Task(id=str(n), prompt="", verifier="exact_match") for n in range(6)]
DULL, MIXED = [1.0, 1.0], [0.0, 1.0]


@pytest.fixture
def slots():
    cls = load_plugins().get("harness", "agentloop")
    harness = cls(cls.config_type())
    return [
        HarnessSlot(label=label, harness=harness, program=None, limits=Limits()) for label in "ab"
    ]


@pytest.fixture
def play(tree, group, slots):
    """Collect pairs whose rewards `rewards(task, label)` says; note every call."""

    async def start(rewards, rounds, optimizer=None):
        asked = []

        async def collect(pairs, stage):
            asked.append((stage, [(task.id, slot.label) for task, slot in pairs]))
            groups = []
            for task, slot in pairs:
                names = [f"{slot.label}{task.id}-{n}" for n in range(2)]
                trees = [tree(name, [(-1, "e", 2), (0, "s", 2)]) for name in names]
                scores = rewards(task.id, slot.label)
                groups.append(group(slot.label, trees, scores, task.id))
            rollouts = [rollout for each in groups for rollout in each.rollouts]
            return rollouts, Grouped(tuple(groups), {"cancelled": 1})

        plan = Resampling(
            rounds=rounds, optimizer=optimizer or Grpo(GrpoConfig()), tasks=TASKS, seed=1
        )
        pairs = [(task, slot) for task in TASKS[:2] for slot in slots]
        rollouts, grouped = await collect_step(plan, pairs, "step-0001", collect)
        return asked, rollouts, grouped

    return start


def keys(grouped):
    return {(group.key.task_id, group.key.harness) for group in grouped.groups}


@pytest.mark.anyio
async def test_a_group_without_contrast_gives_way_to_one_of_its_harness(play):
    def rewards(task, label):
        return DULL if (task, label) == ("1", "b") else MIXED

    asked, rollouts, grouped = await play(rewards, rounds=3)

    assert [stage for stage, _ in asked] == ["step-0001", "step-0001-fresh-1"]
    ((task, label),) = asked[1][1]
    assert (task in {"0", "1"}, label) == (False, "b")
    assert keys(grouped) == {("0", "a"), ("0", "b"), ("1", "a"), (task, "b")}
    assert grouped.dropped == {"cancelled": 2, "no_contrast": 2}
    assert len(rollouts) == 10
    again, _, _ = await play(rewards, rounds=3)
    assert again == asked


@pytest.mark.anyio
async def test_after_the_last_round_a_group_stays_whatever_it_scores(play):
    asked, _, grouped = await play(lambda task, label: DULL if label == "a" else MIXED, rounds=1)
    assert [label for _, label in asked[1][1]] == ["a", "a"]
    assert len(grouped.groups) == 4
    assert keys(grouped).isdisjoint({("0", "a"), ("1", "a")})


@pytest.mark.anyio
async def test_no_task_is_drawn_twice_and_none_left_is_the_end(play):
    asked, rollouts, grouped = await play(lambda task, label: DULL, rounds=9)
    assert [len(pairs) for _, pairs in asked] == [4, 4, 4]
    drawn = [pair for _, pairs in asked for pair in pairs]
    assert len(set(drawn)) == len(drawn) == 12
    assert (len(grouped.groups), len(rollouts)) == (4, 24)


@pytest.mark.anyio
async def test_nothing_is_replaced_without_rounds_or_with_a_critic(play):
    for rounds, optimizer in ((0, None), (5, Ppo(PpoConfig()))):
        asked, _, grouped = await play(lambda task, label: DULL, rounds, optimizer)
        assert len(asked) == 1
        assert keys(grouped) == {("0", "a"), ("0", "b"), ("1", "a"), ("1", "b")}
