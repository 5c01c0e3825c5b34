import pytest

from mixharness.limits import nesting_problem, overridden
from mixharness.types import Limits

START = Limits(agent_s=30, wall_s=60)


def test_a_task_overrides_limits_and_counts_stay_whole() -> None:
    limits = overridden(START, {"max_turns": 3.0, "agent_s": 1, "cpus": 1})
    assert limits == Limits(agent_s=1.0, wall_s=60, max_turns=3, cpus=1.0)
    assert [type(x) for x in (limits.max_turns, limits.agent_s)] == [int, float]
    with pytest.raises(TypeError, match="turns"):
        overridden(START, {"turns": 3})


def test_the_agents_time_must_fit_into_the_walls() -> None:
    assert nesting_problem(Limits()) == ""
    problem = nesting_problem(Limits(agent_s=900, wall_s=900))
    assert problem.startswith("wall_s (900) must exceed agent_s (900)")
