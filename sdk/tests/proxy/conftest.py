"""A started proxy over a scripted engine, and one rollout's session in it."""

import contextlib
from dataclasses import dataclass

import httpx
import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.engine import EngineTokenizer
from mixharness.harness import Harness
from mixharness.proxy.app import Proxy, ProxySession, ProxySettings
from mixharness.proxy.renderer import ChatRenderer
from mixharness.types import HarnessExit, Limits


class PlainHarness(Harness[ComponentConfig]):
    """A program without hints or rules."""

    name = "plain"
    dialects = ("openai_chat", "anthropic_messages")

    async def run(self, session):
        return HarnessExit(exit_code=0)


@dataclass
class Site:
    """Everything a test talks to."""

    engine: ScriptedEngine
    proxy: Proxy
    session: ProxySession
    client: httpx.AsyncClient
    folder: object

    async def chat(self, body, path="/v1/chat/completions", **options):
        url = self.session.base_url + path
        return await self.client.post(url, json={"model": "policy", **body}, **options)

    async def anthropic(self, body, path="/v1/messages", **options):
        headers = {"x-api-key": self.session.secret, "authorization": ""}
        url = self.session.base_url + path
        body = {"model": "policy", "max_tokens": 500, **body}
        return await self.client.post(url, json=body, headers=headers, **options)

    def prompt(self, call_id):
        """Put a call's prompt ids together from the records."""
        calls = {call.id: call for call in self.session.calls}
        call = calls[call_id]
        if call.parent_call is None:
            return list(call.environment_ids)
        parent = calls[call.parent_call]
        known = self.prompt(parent.id) + list(parent.sampled_ids)
        return known[: call.parent_len] + list(call.environment_ids)


@pytest.fixture
def harness():
    return PlainHarness(ComponentConfig())


@pytest.fixture
def open_site(tmp_path, harness):
    """Start engine, proxy and session as asked; all is stopped at the end of the block."""

    @contextlib.asynccontextmanager
    async def open_(*turns, engine=None, settings=None, limits=None, clock=None, script=""):
        config = ScriptedConfig(turns=turns, script=script) if turns or script else None
        engine = engine or ScriptedEngine(config)
        await engine.start()
        proxy = Proxy(engine, settings or ProxySettings())
        await proxy.start()
        try:
            session = proxy.open_session(
                rollout_id="task/h/0",
                harness=harness,
                limits=limits or Limits(),
                folder=tmp_path / "rollout",
                clock=clock,
            )
            headers = {"authorization": f"Bearer {session.secret}"}
            async with httpx.AsyncClient(headers=headers, timeout=20) as client:
                yield Site(engine, proxy, session, client, tmp_path / "rollout")
        finally:
            await proxy.stop()
            await engine.stop()

    return open_


@pytest.fixture(scope="session")
def renderer():
    tokenizer = EngineTokenizer(tokenizer=byte_tokenizer(), renderer="qwen3", context=32768)
    return ChatRenderer(tokenizer)
