"""Rule 9: during a weight update requests are held, and each token carries its policy version."""

from pathlib import Path

import anyio
import pytest

from mixharness import SandboxSpec, Session
from mixharness.types import VersionSpan

pytestmark = pytest.mark.anyio


async def test_a_request_at_the_closed_gate_is_served_by_the_new_weights(bench):
    engine = bench.engine(bench.call("cp name.txt answer.txt"), "Done.")
    before = await bench.run(engine, sample=0)
    assert {call.versions[0].version for call in before.calls} == {0}

    engine, harness, folder = bench.engine("Done."), bench.agentloop(), bench.store.path("held")
    async with bench.open(engine) as runner:
        spec = SandboxSpec(rollout_id="held", files=bench.task.files, limits=bench.limits)
        proxy = runner.proxy.open_session(
            rollout_id="held", harness=harness, limits=bench.limits, folder=folder
        )
        async with runner.sandbox.open(spec) as sandbox:
            session = Session(
                task=bench.task,
                program=None,
                sandbox=sandbox,
                base_url=proxy.base_url,
                secret=proxy.secret,
                limits=bench.limits,
            )
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group, runner.proxy.gate.closed():
                    group.start_soon(harness.run, session)
                    while not (proxy.pending or engine.asked):
                        await anyio.sleep(0.01)
                    asked_while_closed = list(engine.asked)
                    await engine.load_weights(Path(), policy_version=7)
        (call,) = proxy.calls
        await proxy.close()
    assert asked_while_closed == []
    assert call.versions == (VersionSpan(7, 0, len(call.sampled_ids)),)
    assert call.held_s > 0
    assert not proxy.notes
