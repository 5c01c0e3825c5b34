"""The real program, and a bench that runs rollouts of it against the scripted engine."""

import json

import anyio
import pytest

from mixharness import Limits, Program, Task
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.proxy.app import Proxy, ProxySettings
from mixharness.proxy.log import read_bodies
from mixharness.rollout.cache import cache_dir
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner
from mixharness.testing import FixedVerifier
from mixharness.testing.doubles import FixedVerifierConfig
from mixharness_pi import Pi, PiConfig


@pytest.fixture(scope="session")
def program() -> Program:
    """The real program; installed when it is missing, so that no test is skipped."""
    return anyio.run(Pi(PiConfig()).install, cache_dir())


class Bench:
    def __init__(self, program, folder):
        self.program, self.store = program, RunStore(folder)

    async def run(self, *turns, context=32_768, files=(), sample=0, **config):
        """Run one rollout; the engine plays the turns in their order."""
        self.engine = ScriptedEngine(ScriptedConfig(turns=turns, context=context))
        await self.engine.start()
        proxy = Proxy(self.engine, ProxySettings(max_tokens=2048, keep_alive_s=0.2))
        await proxy.start()
        runner = Runner(
            proxy=proxy,
            sandbox=LocalSandboxBackend(LocalSandboxConfig()),
            verifiers={"fixed": FixedVerifier(FixedVerifierConfig())},
            store=self.store,
        )
        slot = HarnessSlot(
            label="pi", harness=Pi(PiConfig(**config)), program=self.program, limits=Limits()
        )
        task = Task(id="t", prompt="Copy a.txt to b.txt.", verifier="fixed", files=dict(files))
        try:
            return await run_one(
                runner, RolloutRequest(task=task, slot=slot, sample=sample, stage="test")
            )
        finally:
            await proxy.stop()

    def requests(self, rollout):
        found = read_bodies(self.store.path(rollout.id))
        return [json.loads(body.data) for body in found if body.kind == "request"]

    def prompt(self, rollout):
        """Return the text of the first prompt."""
        ids = list(rollout.calls[0].environment_ids)
        return self.engine.tokenizer.tokenizer.decode(ids, skip_special_tokens=False)

    def file(self, rollout, name):
        return (self.store.path(rollout.id) / "workspace" / name).read_text()


@pytest.fixture
def bench(program, tmp_path):
    return Bench(program, tmp_path)
