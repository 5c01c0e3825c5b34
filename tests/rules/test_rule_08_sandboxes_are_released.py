"""Rule 8: sandboxes are always released. The runner's crash: sdk/tests/test_local_sandbox.py."""

import asyncio
from contextlib import suppress

import psutil
import pytest

from mixharness import FailureKind, Limits
from mixharness.rollout.run_one import run_one

pytestmark = pytest.mark.anyio


def sleeps(seconds):
    found = psutil.process_iter(["cmdline", "status"])
    return [p.pid for p in found if p.info["cmdline"] == ["sleep", seconds]]


async def both_run(seconds):
    while len(sleeps(seconds)) < 2:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("ending", "command", "kind"),
    [
        ("normal end", "setsid sleep 4801 & cp name.txt answer.txt", None),
        ("failure", "setsid sleep 4801 & rm -rf . ; exit 3", FailureKind.INVALID_TOOL_LOOP),
        ("timeout", "setsid sleep 4801 & sleep 4801", FailureKind.AGENT_TIMEOUT),
    ],
)
async def test_nothing_is_left(bench, temporary, ending, command, kind):
    bench.limits = Limits(agent_s=1.0 if ending == "timeout" else 30.0, wall_s=60)
    turns = {
        "failure": [bench.call("").replace("bash", "fly")],
        "timeout": [bench.call(command)] * 2,  # one command gets half of the agent's time
    }.get(ending, ["Done."])
    rollout = await bench.run(bench.engine(bench.call(command), *turns))
    assert (rollout.failure.kind if rollout.failure else None) == kind
    assert sleeps("4801") == []
    assert list(temporary.iterdir()) == []


async def test_nothing_is_left_after_a_cancel(bench, temporary):
    # The first is an orphan: it is below the sandbox, but not below its command.
    engine = bench.engine(bench.call("(setsid sleep 4802 &); sleep 4802"))
    async with bench.open(engine) as runner:
        running = asyncio.create_task(run_one(runner, bench.request()))
        await asyncio.wait_for(both_run("4802"), 20)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert sleeps("4802") == []
        assert list(temporary.iterdir()) == []
