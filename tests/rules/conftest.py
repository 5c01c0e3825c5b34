"""The parts of a run, all real; only what the policy says is played. No assertions about rules."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from mixharness import Harness, HarnessExit, Limits, Rollout, Session, Task
from mixharness.builtin.exact_match import ExactMatch, ExactMatchConfig
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.engine import GenerateRequest, Generation
from mixharness.proxy.app import Proxy, ProxySettings
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness_agentloop.harness import AgentLoop, AgentLoopConfig

TASK = Task(
    id="greet",
    prompt="Read name.txt and write the name into answer.txt.",
    verifier="exact_match",
    files={"name.txt": "Ada\n"},
    answer={"text": "Ada"},
)


class NotingEngine(ScriptedEngine):
    """Plays turns, gives every token a log-prob of its own, and keeps what it was asked."""

    def __init__(self, *turns: str) -> None:
        super().__init__(ScriptedConfig(turns=turns))
        self.asked: list[GenerateRequest] = []
        self.gave: list[Generation] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        self.asked.append(request)
        played = await super().generate(request)
        logprobs = tuple(-0.01 * (place + 1) for place in range(len(played.ids)))
        self.gave.append(replace(played, logprobs=logprobs))
        return self.gave[-1]


class DeadEngine(ScriptedEngine):
    """Cannot sample."""

    async def generate(self, request: GenerateRequest) -> Generation:
        raise RuntimeError("out of memory")


class RewriterConfig(ComponentConfig):
    rewrites: bool = True


class Rewriter(Harness[RewriterConfig]):
    """Three calls. With `rewrites` it also asks once in vain and changes what it said before.

    Keeps the bytes it sent and received in `wire`.
    """

    name = "rewriter"
    config_type = RewriterConfig
    dialects = ("openai_chat",)

    def __init__(self, config: RewriterConfig) -> None:
        super().__init__(config)
        self.wire: list[tuple[bytes, bytes]] = []

    async def run(self, session: Session) -> HarnessExit:
        headers = {"authorization": f"Bearer {session.secret}"}
        url = f"{session.base_url}/v1/chat/completions"
        async with httpx.AsyncClient(headers=headers, timeout=30, trust_env=False) as client:

            async def ask(*messages: dict[str, Any], max_tokens: int = 900) -> dict[str, Any]:
                body = {"messages": messages, "max_tokens": max_tokens}
                response = await client.post(url, json=body)
                response.raise_for_status()
                self.wire.append((response.request.content, response.content))
                return response.json()["choices"][0]["message"]

            start = {"role": "user", "content": session.task.prompt}
            first = await ask(start)
            result = {"role": "tool", "tool_call_id": _call_id(first), "content": "Ada"}
            if self.config.rewrites:
                await ask(start, first, result, max_tokens=901)
            second = await ask(start, first, result)
            if self.config.rewrites:
                result = {**result, "content": "Ada (seen before)"}
            more = {"role": "user", "content": "Go on."}
            await ask(start, first, result, second, more)
        return HarnessExit(exit_code=0)


def _call_id(message: dict[str, Any]) -> str:
    return message["tool_calls"][0]["id"]


class Bench:
    """Puts the parts of a run together; a test changes the one it is about."""

    task = TASK
    dead = DeadEngine

    def __init__(self, folder: Path) -> None:
        self.store = RunStore(folder)
        self.proxy = ProxySettings(temperature=0.7)
        self.settings = RunnerSettings(max_infra_retries=0)
        self.verifier = ExactMatch(ExactMatchConfig())
        self.sandbox = LocalSandboxBackend(LocalSandboxConfig())
        self.limits = Limits(agent_s=30, wall_s=60)

    @staticmethod
    def call(command: str) -> str:
        """Return a turn that runs a command, in the policy's own wire form."""
        body = orjson.dumps({"name": "bash", "arguments": {"command": command}}).decode()
        return f"<tool_call>\n{body}\n</tool_call>"

    engine = NotingEngine

    @staticmethod
    def agentloop(**config: Any) -> AgentLoop:
        return AgentLoop(AgentLoopConfig(**config))

    @staticmethod
    def rewriter(**config: Any) -> Rewriter:
        return Rewriter(RewriterConfig(**config))

    @asynccontextmanager
    async def open(self, engine: ScriptedEngine) -> AsyncIterator[Runner]:
        """Start engine and proxy; stop both at the end."""
        await engine.start()
        proxy = Proxy(engine, self.proxy)
        await proxy.start()
        try:
            yield Runner(
                proxy=proxy,
                sandbox=self.sandbox,
                verifiers={"exact_match": self.verifier},
                store=self.store,
                settings=self.settings,
            )
        finally:
            await proxy.stop()
            await engine.stop()

    def request(
        self, harness: Harness[Any] | None = None, label: str = "agentloop", sample: int = 0
    ) -> RolloutRequest:
        used = harness or self.agentloop()
        slot = HarnessSlot(label=label, harness=used, program=None, limits=self.limits)
        return RolloutRequest(task=self.task, slot=slot, sample=sample, stage="rule")

    async def run(self, engine: ScriptedEngine, **asked: Any) -> Rollout:
        async with self.open(engine) as runner:
            return await run_one(runner, self.request(**asked))


@pytest.fixture
def temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Where sandboxes live; unlike tmp_path it is open to the sandbox's user."""
    tmp_path_factory.getbasetemp()  # chosen before the patch below
    with tempfile.TemporaryDirectory(prefix="mixharness-test-") as name:
        Path(name).chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture
def bench(temporary: Path, tmp_path: Path) -> Bench:
    return Bench(tmp_path / "run")
