"""Kills in the middle of docker rollouts: nothing stays, and the policy pays for its own alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mixharness.types import FailureClass, FailureKind

pytestmark = [pytest.mark.docker, pytest.mark.slow]

HERE = Path(__file__).parent
PLACES = ("containers", "networks", "volumes", "rules", "temporary", "agents")
NOTHING = {place: [] for place in PLACES}


def chaos(*options: str) -> dict:
    """Disturb a run beside an engine of its own, and return what came of it."""
    world, program = HERE / "private_dockerd.py", HERE / "chaos.py"
    command = [sys.executable, str(world), sys.executable, str(program), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kills_at_random_leave_nothing_behind():
    found = chaos("--count", "40")
    assert found["left"] == NOTHING
    assert found["rollouts"] == 40 == found["completed"] + sum(found["failures"].values())
    assert min(found["strikes"][kind] for kind in ("harness", "container", "runner")) >= 1
    assert found["runner_starts"] == found["strikes"]["runner"] + 2
    assert found["reaped"] >= 1


def test_a_restarted_engine_costs_the_policy_nothing():
    found = chaos("--count", "6", "--kill", "engine", "--strikes", "1", "--retries", "6")
    assert found["failed_attempts"]  # it did hit somebody
    blamed = {FailureKind(kind).failure_class for kind in found["failed_attempts"]}
    assert blamed == {FailureClass.INFRA}
    assert (found["completed"], found["failures"]) == (6, {})
    assert found["left"] == NOTHING
