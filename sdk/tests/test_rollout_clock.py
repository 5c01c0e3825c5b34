import pytest

from mixharness.rollout.clock import RolloutClock


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_agent_clock_stands_still_while_any_call_is_under_way() -> None:
    time = Time()
    clock = RolloutClock(time)
    time.now_s += 2  # agent
    clock.pause()
    time.now_s += 10
    clock.pause()
    time.now_s += 10
    clock.resume()
    time.now_s += 10  # one call is still under way
    assert (clock.agent_s, clock.wall_s) == (2, 32)
    clock.resume()
    time.now_s += 3  # agent
    assert (clock.agent_s, clock.wall_s) == (5, 35)


def test_resume_without_pause_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="without pause"):
        RolloutClock().resume()
