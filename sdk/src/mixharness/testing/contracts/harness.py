"""The contract of harnesses: real rollouts against the scripted engine, in the local sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.errors import ProgramMissingError
from mixharness.harness import Harness
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.cache import cache_dir
from mixharness.rollout.scheduler import collect
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.testing.contracts.component import ComponentContract
from mixharness.testing.doubles import FixedVerifier, FixedVerifierConfig
from mixharness.types import Limits, Rollout, Task

LIMITS = Limits(memory_mb=8192)  # address space, of which Node reserves more than it ever uses
TASK = Task(id="contract", prompt="Say hello.", verifier="fixed")


async def play(harness: Harness[Any], run_dir: Path, count: int) -> list[Rollout]:
    """Run a harness `count` times at once on one task; the model says one plain sentence."""
    slot = HarnessSlot(
        label=harness.name, harness=harness, program=harness.find(cache_dir()), limits=LIMITS
    )
    requests = [RolloutRequest(task=TASK, slot=slot, sample=i, stage="t") for i in range(count)]
    engine = ScriptedEngine(ScriptedConfig(turns=("Hello there.",)))
    await engine.start()
    proxy = Proxy(engine, ProxySettings())
    await proxy.start()
    try:
        runner = Runner(
            proxy=proxy,
            sandbox=LocalSandboxBackend(LocalSandboxConfig()),
            verifiers={"fixed": FixedVerifier(FixedVerifierConfig())},
            store=RunStore(run_dir),
            settings=RunnerSettings(max_infra_retries=0),
        )
        return await collect(runner, requests, concurrency=count)
    finally:
        await proxy.stop()
        await engine.stop()


class HarnessContract(ComponentContract):
    """A harness reaches the model through its session, and only so."""

    def test_a_missing_program_names_the_command(
        self, component: Harness[Any], tmp_path: Path
    ) -> None:
        """A user reads how to install it."""
        message = ""
        try:
            component.find(tmp_path)
        except ProgramMissingError as exc:
            message = str(exc)
        assert not message or f"mixharness harness install {component.name}" in message

    def test_dialects_are_named(self, component: Harness[Any]) -> None:
        """At least one, of the known ones."""
        assert component.dialects
        assert set(component.dialects) <= {
            "anthropic_messages",
            "openai_chat",
            "openai_responses",
        }

    @pytest.mark.anyio
    async def test_two_rollouts_at_once_do_not_mix(
        self, component: Harness[Any], tmp_path: Path
    ) -> None:
        """Both sample, neither fails, and each call stands in its own rollout."""
        try:
            rollouts = await play(component, tmp_path, 2)
        except ProgramMissingError as exc:
            pytest.skip(str(exc))
        assert [rollout.failure for rollout in rollouts] == [None, None]
        assert all(rollout.calls for rollout in rollouts)
        for rollout in rollouts:
            assert {call.rollout_id for call in rollout.calls} == {rollout.id}
            assert any(call.sampled_ids for call in rollout.calls)
