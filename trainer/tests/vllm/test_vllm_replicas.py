"""Two real vLLM servers behind one engine: log-probs, weight syncs, cancels, and a `kill -9`.

The tests share the servers and stand in an order: the last one kills a server.
"""

import asyncio
import re
import signal
import time

import psutil
import pytest

from mixharness.engine import SamplingCancelled
from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.engine import VllmEngine
from mixharness_trainer.engines.vllm.replica import State

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.anyio]

FP32 = 1e-3
"""Most that a log-prob may differ from the trainer's."""
SESSIONS = [f"session-{number}" for number in range(8)]


@pytest.fixture(scope="module")
async def engine(old_folder, server_python):
    engine = VllmEngine(
        VllmConfig(
            model=str(old_folder),
            python=server_python,
            replicas=2,
            on_update="keep",
            cache_mb=64,
        )
    )
    await engine.start()
    yield engine
    await engine.stop()
    assert not [p for p in psutil.Process().children(recursive=True) if "vllm" in p.name().lower()]


async def wait_until(claim, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await claim():
            await asyncio.sleep(0.05)


async def running(replica) -> int:
    """Return the number of requests that vLLM itself says it is sampling."""
    metrics = (await replica.client._http.get("/metrics")).text
    return int(float(re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", metrics, re.M)[1]))


async def everybody(engine, request_of, name: str, **sampling):
    """Sample in several sessions at once, so that every server takes part."""
    return await asyncio.gather(
        *(engine.generate(request_of(f"{name}-{s}", session=s, **sampling)) for s in SESSIONS)
    )


async def test_logprobs_are_of_the_distribution_sampled(
    engine, request_of, differences, old_folder
):
    for temperature in (0.7, 1.0, 1.3):
        for found in await everybody(
            engine, request_of, f"t{temperature}", temperature=temperature
        ):
            assert differences(old_folder, found, temperature).abs().max() <= FP32
    assert differences(old_folder, found, 1.0).abs().max() > 10 * FP32  # the check can fail


async def test_it_ends_at_a_stop_token_at_the_limit_and_at_the_context(engine, request_of):
    cut = await engine.generate(request_of("cut", max_tokens=7))
    assert (len(cut.ids), cut.finish_reason) == (7, "length")
    stopped = await engine.generate(request_of("stopped", stop=tuple(range(512))))
    assert (len(stopped.ids), stopped.finish_reason) == (1, "stop")
    long = await engine.generate(request_of("long", max_tokens=2000))
    assert (150 + len(long.ids), long.finish_reason) == (engine.tokenizer.context, "length")


async def test_a_session_stays_in_its_replica_and_sessions_are_spread(engine):
    chosen = [[(await engine._replica_of(s)).url for s in SESSIONS] for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 2


async def test_a_request_that_vllm_would_sample_otherwise_is_refused(engine, request_of):
    with pytest.raises(EngineError, match=r"at least 0\.01"):
        await engine.generate(request_of("greedy", temperature=0.0))


async def test_a_sync_changes_what_is_sampled_as_it_changes_the_trainer(
    engine, request_of, differences, greediness, old_folder, new_folder
):
    before = await everybody(engine, request_of, "g0", temperature=0.01)
    skipped = await everybody(engine, request_of, "s0", temperature=0.7)
    await engine.load_weights(new_folder, 1)
    after = await everybody(engine, request_of, "g1", temperature=0.01)
    synced = await everybody(engine, request_of, "s1", temperature=0.7)

    for found in before:
        assert greediness(old_folder, found) >= 0.8
        assert greediness(new_folder, found) <= 0.2
    for found in after:
        assert greediness(new_folder, found) >= 0.8
        assert greediness(old_folder, found) <= 0.2
    for found in synced:
        assert [span.version for span in found.versions] == [1]
        assert differences(new_folder, found, 0.7).abs().max() <= FP32
    for found in skipped:  # what a sync that was skipped looks like
        assert differences(new_folder, found, 0.7).abs().max() > 100 * FP32


async def test_tokens_around_a_sync_carry_their_version_and_no_request_fails(
    engine, request_of, differences, old_folder, new_folder
):
    folders = {1: new_folder, 2: old_folder}
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(engine.generate(request_of(s, session=s, max_tokens=400)))
            for s in SESSIONS
        ]
        for replica in engine._replicas:
            await wait_until(lambda r=replica: running(r), 30)
        await asyncio.sleep(0.5)  # some tokens of the old weights
        await engine.load_weights(old_folder, 2)
    found = [task.result() for task in tasks]

    assert [len(each.ids) for each in found] == [400] * len(SESSIONS)
    assert any([span.version for span in each.versions] == [1, 2] for each in found)
    for each in found:
        for span in each.versions:
            at = slice(span.start, span.end)
            assert differences(folders[span.version], each, 1.0)[at].abs().max() <= FP32


async def test_weights_that_do_not_fit_change_nothing(engine, request_of, tmp_path):
    with pytest.raises(EngineError, match=r"has no \*\.safetensors"):
        await engine.load_weights(tmp_path, 3)
    assert engine.policy_version == 2
    assert (await engine.generate(request_of("still"))).versions[0].version == 2


async def test_a_cancel_frees_the_slot_within_a_second(engine, request_of, differences, old_folder):
    replica = await engine._replica_of("s")
    victim = asyncio.create_task(engine.generate(request_of("victim", max_tokens=800)))
    await wait_until(lambda: running(replica), 30)
    await asyncio.sleep(0.3)
    victim.cancel()
    began = time.monotonic()
    with pytest.raises(SamplingCancelled) as caught:
        await victim
    while await running(replica):
        assert time.monotonic() - began < 1.0
    cut = caught.value.generation
    assert (0 < len(cut.ids) < 800, cut.finish_reason) == (True, "cancelled")
    assert differences(old_folder, cut, 1.0).abs().max() <= FP32


async def test_requests_of_a_killed_replica_move_and_it_comes_back_with_the_present_weights(
    engine, request_of, differences, new_folder
):
    await engine.load_weights(new_folder, 3)
    killed = await engine._replica_of("s")
    own = [s for s in SESSIONS if await engine._replica_of(s) is killed]
    tasks = [
        asyncio.create_task(engine.generate(request_of(f"k-{s}", session=s, max_tokens=300)))
        for s in SESSIONS
    ]
    await wait_until(lambda: running(killed), 30)
    guard = psutil.Process(killed._server._process.pid)
    (server,) = guard.children()
    server.send_signal(signal.SIGKILL)

    found = await asyncio.gather(*tasks)
    assert [len(each.ids) for each in found] == [300] * len(SESSIONS)
    assert own
    async with asyncio.timeout(600):
        while killed.state is not State.ALIVE:
            assert killed.state is State.STARTING
            await asyncio.sleep(0.2)
    again = await killed.client.sample(request_of("again", temperature=0.7), 50)
    assert [span.version for span in again.versions] == [3]
    assert differences(new_folder, again, 0.7).abs().max() <= FP32
