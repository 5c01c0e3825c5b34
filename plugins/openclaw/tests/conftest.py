"""The real program, and a bench that runs rollouts of it against the scripted engine."""

import json
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

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
from mixharness_openclaw import OpenClaw, OpenClawConfig

TURN = "<|im_start|>assistant\n"


@pytest.fixture(scope="session")
def program() -> Program:
    """The real program; installed when it is missing, so that no test is skipped."""
    return anyio.run(OpenClaw(OpenClawConfig()).install, cache_dir())


class Engine(ScriptedEngine):
    """Plays turns by their place in the prompt, or what `play` says, and keeps the prompts."""

    def __init__(self, turns=(), play=None, context=32_768, failures=0) -> None:
        super().__init__(ScriptedConfig(script="turns_of_openclaw_test:play", context=context))
        self.turns, self.failures, self.prompts = turns, failures, {}
        sys.modules["turns_of_openclaw_test"] = SimpleNamespace(play=play or self.turn)

    def turn(self, prompt: str) -> str:
        return self.turns[prompt.count(TURN) - 1]

    async def generate(self, request):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("out of memory")
        self.prompts.setdefault(request.session_id, []).append(request.prompt_ids)
        return await super().generate(request)


class Bench:
    def __init__(self, program, folder):
        self.program, self.store = program, RunStore(folder)
        self.limits, self.config = Limits(memory_mb=6144), OpenClawConfig()
        self.sandbox = LocalSandboxBackend(LocalSandboxConfig())
        self.render_rules = ()

    @asynccontextmanager
    async def runner(self, *turns, **engine):
        self.engine = Engine(turns, **engine)
        await self.engine.start()
        settings = ProxySettings(max_tokens=2048, keep_alive_s=0.2, render_rules=self.render_rules)
        proxy = Proxy(self.engine, settings)
        await self.sandbox.start()
        try:
            await self.sandbox.admit(await proxy.start(self.sandbox.proxy_host))
            yield Runner(
                proxy=proxy,
                sandbox=self.sandbox,
                verifiers={"fixed": FixedVerifier(FixedVerifierConfig())},
                store=self.store,
            )
        finally:
            await proxy.stop()
            await self.sandbox.stop()

    def request(self, sample=0, **task):
        slot = HarnessSlot(
            label="openclaw",
            harness=OpenClaw(self.config),
            program=self.program,
            limits=self.limits,
        )
        given = {"id": "t", "prompt": "Copy a.txt to b.txt.", "files": {"a.txt": "alpha\n"}} | task
        return RolloutRequest(
            task=Task(verifier="fixed", **given), slot=slot, sample=sample, stage="test"
        )

    async def run(self, *turns, task=None, **engine):
        async with self.runner(*turns, **engine) as runner:
            return await run_one(runner, self.request(**(task or {})))

    def text(self, rollout):
        decode = self.engine.tokenizer.tokenizer.decode
        return [decode(c.sampled_ids, skip_special_tokens=False) for c in rollout.calls]

    def bodies(self, rollout, kind):
        found = read_bodies(self.store.path(rollout.id))
        return [body.data for body in found if body.kind == kind]

    def requests(self, rollout):
        return [json.loads(body) for body in self.bodies(rollout, "request")]

    def file(self, rollout, name):
        return (self.store.path(rollout.id) / "workspace" / name).read_text()


@pytest.fixture
def bench(program, tmp_path):
    return Bench(program, tmp_path)
