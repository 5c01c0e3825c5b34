"""Which groups are handed out, and when they are too old. Time is counted in turns of the loop."""

import asyncio
import random
from itertools import count, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixharness.types import FailureKind
from mixharness_trainer.ahead import Ahead


class World:
    """The weights' version, and a plan of groups that note what becomes of them."""

    def __init__(self, turns, queued=lambda number: 0):
        self.turns, self.queued, self.version = turns, queued, 0
        self.started, self.running = [], set()
        self.plan = (Group(self, number) for number in count())

    def ahead(self, per_step, max_staleness):
        return Ahead(
            self.plan,
            per_step=per_step,
            max_staleness=max_staleness,
            version=lambda: self.version,
        )


class Group:
    """Waits for a place, samples a token, and is done some turns later; never without turns."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.oldest_version, self.fate = None, None

    async def collect(self):
        self.world.started.append(self.number)
        self.world.running.add(self.number)
        try:
            await turn(self.world.queued(self.number))
            self.oldest_version = self.world.version
            turns = self.world.turns(self.number)
            await (turn(turns) if turns is not None else asyncio.Event().wait())
        finally:
            self.world.running.remove(self.number)

    def discard(self, kind):
        assert self.number not in self.world.running
        self.fate = kind


async def turn(times=1):
    for _ in range(times):
        await asyncio.sleep(0)


def numbers(groups):
    return [group.number for group in groups]


@given(
    seed=st.integers(0, 2**32),
    per_step=st.integers(1, 4),
    max_staleness=st.integers(0, 3),
    update=st.integers(0, 12),
    longest=st.integers(1, 60),
)
@settings(max_examples=150, deadline=None)
def test_no_group_is_older_than_allowed_and_none_is_lost(
    seed, per_step, max_staleness, update, longest
):
    rng = random.Random(seed)
    turns = [1 + int(longest * rng.random() ** 4) for _ in range(400)]
    queued = [rng.randrange(8) for _ in range(400)]
    asyncio.run(
        check_bound(World(turns.__getitem__, queued.__getitem__), per_step, max_staleness, update)
    )


async def check_bound(world, per_step, max_staleness, update):
    chosen, dropped = [], []
    async with world.ahead(per_step, max_staleness) as ahead:
        for _ in range(12):
            groups, stale = await ahead.take()
            assert len(groups) == per_step
            ages = [world.version - group.oldest_version for group in groups]
            assert max(ages) <= max_staleness
            assert all(world.version - g.oldest_version > max_staleness for g in stale)
            chosen += numbers(groups)
            dropped += stale
            # Open: started and not done with, those being trained on included.
            open_groups = len(world.started) - (len(chosen) - per_step) - len(dropped)
            assert open_groups <= (max_staleness + 1) * per_step
            await turn(update)
            world.version += 1
    assert world.started == list(range(len(world.started)))
    assert len(set(chosen)) == len(chosen)
    assert not set(chosen) & set(numbers(dropped))
    assert {group.fate for group in dropped} <= {FailureKind.STALE}
    assert not world.running


@pytest.mark.anyio
async def test_without_staleness_a_step_waits_for_its_own_groups_and_starts_no_others():
    world = World(lambda number: 30 if number % 3 == 0 else 1)
    async with world.ahead(per_step=3, max_staleness=0) as ahead:
        for step in range(4):
            groups, stale = await ahead.take()
            assert (numbers(groups), stale) == ([3 * step, 3 * step + 1, 3 * step + 2], [])
            await turn(40)
            assert world.started == list(range(3 * step + 3))
            assert {group.oldest_version for group in groups} == {step}
            world.version += 1


@pytest.mark.anyio
async def test_a_hanging_group_blocks_no_later_step_and_is_dropped_when_it_is_too_old():
    world = World(lambda number: None if number == 0 else 2)
    taken, dropped = [], []
    async with asyncio.timeout(10), world.ahead(per_step=2, max_staleness=1) as ahead:
        for _ in range(4):
            groups, stale = await ahead.take()
            taken.append(numbers(groups))
            dropped.append(stale)
            world.version += 1
    assert taken == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert [numbers(stale) for stale in dropped] == [[], [], [0], []]
    assert dropped[2][0].fate is FailureKind.STALE
    assert not world.running


@pytest.mark.anyio
async def test_groups_of_later_steps_run_while_the_trainer_waits_and_updates():
    world = World(lambda number: 50 if number == 0 else 5)
    async with world.ahead(per_step=2, max_staleness=1) as ahead:
        groups, _ = await ahead.take()
        assert numbers(groups) == [1, 2]
        assert world.started == [0, 1, 2, 3]
        await turn(60)  # the update: what is open goes on
        assert not world.running
        world.version += 1
        groups, stale = await ahead.take()
    # Complete ones are taken in the plan's order, at once.
    assert (numbers(groups), stale) == ([0, 3], [])


@pytest.mark.anyio
async def test_a_complete_group_that_nobody_took_grows_stale_too():
    world = World(lambda number: 1)
    async with world.ahead(per_step=1, max_staleness=2) as ahead:
        await ahead.take()
        world.version += 4  # as after a resume from an older checkpoint
        groups, stale = await ahead.take()
    assert (numbers(groups), numbers(stale)) == ([3], [1, 2])


@pytest.mark.anyio
async def test_leaving_ends_what_runs_and_notes_it():
    world = World(lambda number: None if number > 1 else 1)
    seen = []
    world.plan = (seen.append(group) or group for group in world.plan)
    async with world.ahead(per_step=2, max_staleness=2) as ahead:
        await ahead.take()
        assert world.running == {2, 3, 4, 5}
    assert not world.running
    fates = [group.fate for group in seen]
    assert fates == [None, None, *[FailureKind.CANCELLED] * 4]


@pytest.mark.anyio
async def test_a_run_that_breaks_off_keeps_its_groups_for_its_resumption():
    world = World(lambda number: None)
    seen = []
    world.plan = (seen.append(group) or group for group in world.plan)

    async def broken():
        async with world.ahead(per_step=2, max_staleness=1) as ahead:
            await ahead.take()

    running = asyncio.create_task(broken())
    await turn(3)
    assert len(world.running) == 4
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (world.running, {group.fate for group in seen}) == (set(), {None})


@pytest.mark.anyio
async def test_a_plan_that_is_used_up_ends_with_smaller_steps():
    world = World(lambda number: 1)
    world.plan = islice(world.plan, 5)
    async with world.ahead(per_step=2, max_staleness=1) as ahead:
        taken = [numbers((await ahead.take())[0]) for _ in range(4)]
    assert taken == [[0, 1], [2, 3], [4], []]


@pytest.mark.anyio
async def test_what_a_group_raises_is_raised_by_take():
    def turns(number):
        if number == 1:
            raise RuntimeError("no verifier")
        return 100

    world = World(turns)
    with pytest.raises(RuntimeError, match="no verifier"):
        async with world.ahead(per_step=2, max_staleness=1) as ahead:
            await ahead.take()
    assert not world.running
