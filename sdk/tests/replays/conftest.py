"""A rollout replayed request by request through a real proxy, then assembled into its tree.

Expected prompts are written out as text; `ids` reads control strings as the tokens they are.
"""

import contextlib

import anyio
import httpx
import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.harness import CallIdentity, Harness
from mixharness.proxy.app import Proxy, ProxySettings
from mixharness.tree import build_graph, build_tree, prune
from mixharness.types import CallRole, HarnessExit, Limits, NodeKind

TOKENIZER = byte_tokenizer()


def ids(text):
    """Return a text's ids; what looks like a control token is one."""
    return tuple(TOKENIZER.encode(text, add_special_tokens=False).ids)


class Program(Harness[ComponentConfig]):
    """Tells role and agent in two headers, or nothing."""

    name = "program"
    dialects = ("openai_chat", "anthropic_messages")

    async def run(self, session):
        return HarnessExit(exit_code=0)

    def role_of(self, request):
        if "x-role" not in request.headers:
            return None
        role = CallRole(request.headers["x-role"])
        return CallIdentity(role, request.headers.get("x-agent", ""))


class RecordingEngine(ScriptedEngine):
    """Plays its turns in the order of the requests, and keeps the prompts."""

    def __init__(self, *turns):
        super().__init__(ScriptedConfig(turns=turns))
        self.prompts = {}

    async def generate(self, request):
        name = request.request_id.rpartition("/")[2]
        self.prompts[name] = request.prompt_ids
        return await super().generate(request)


class Replay:
    """One rollout, and what became of it."""

    def __init__(self, engine, session, client, folder):
        self.engine, self.session, self.client, self.folder = engine, session, client, folder

    async def anthropic(self, *messages, **options):
        """Post to `/v1/messages`; return the content of the answer."""
        response = await self.post_anthropic(messages, **options)
        assert response.status_code == 200, response.text
        return response.json()["content"]

    async def post_anthropic(self, messages, agent="", role="", **body):
        body = {"model": "policy", "max_tokens": 500, "messages": messages, **body}
        headers = {"x-api-key": self.session.secret}
        if role:
            headers |= {"x-role": role, "x-agent": agent}
        url = self.session.base_url + "/v1/messages"
        return await self.client.post(url, json=body, headers=headers)

    async def chat(self, *messages, role="", **body):
        """Post to `/v1/chat/completions`; return the answer's message."""
        body = {"model": "policy", "messages": messages, **body}
        headers = {"authorization": f"Bearer {self.session.secret}"}
        headers |= {"x-role": role} if role else {}
        url = self.session.base_url + "/v1/chat/completions"
        response = await self.client.post(url, json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["message"]

    async def wait_for_duplicates(self, number):
        with anyio.fail_after(5):
            while self.session._duplicates.total() < number:
                await anyio.sleep(0.005)

    @property
    def calls(self):
        return self.session.calls

    def assert_prompts(self, **expected):
        """Compare what the engine read, id by id; `call_0="…"` has the text written out."""
        for name, text in expected.items():
            found = TOKENIZER.decode(list(self.engine.prompts[name]), skip_special_tokens=False)
            assert found == text
            assert self.engine.prompts[name] == ids(text)

    @property
    def graph(self):
        """Call to the calls it continues, and its fork."""
        holds = build_graph(self.calls).holds
        return {one.id: (*holds[one.id], *([one.fork] if one.fork else [])) for one in self.calls}

    @property
    def shared(self):
        """Call to the call whose tokens it goes on from, and how many of them."""
        return {one.id: (one.parent_call, one.parent_len) for one in self.calls}

    @property
    def reasons(self):
        return dict(prune(self.calls).reasons)

    @property
    def tree(self):
        return build_tree(self.calls, prune(self.calls))

    @property
    def edges(self):
        """Trained tokens: call, the position of its first target, and its text.

        Checks on the way that no token is trained twice, and that only sampled ones are.
        """
        trained = [node for node in self.tree.nodes if node.trained]
        by_id = {one.id: one for one in self.calls}
        assert all(node.kind is NodeKind.SAMPLED for node in trained)
        assert len({node.call_id for node in trained}) == len(trained)
        assert all(node.ids == by_id[node.call_id].sampled_ids for node in trained)
        assert {node.call_id for node in trained} | self.reasons.keys() == by_id.keys()
        found = []
        for node in trained:
            assert node.depth == len(self.engine.prompts[node.call_id])
            text = TOKENIZER.decode(list(node.ids), skip_special_tokens=False)
            found.append((node.call_id, node.depth, text))
        return sorted(found, key=lambda edge: by_id[edge[0]].index)


@pytest.fixture
def open_replay(tmp_path):
    """Start engine, proxy and session as asked; all is stopped at the end of the block."""

    @contextlib.asynccontextmanager
    async def open_(*turns, engine=None, rules=()):
        engine = engine or RecordingEngine(*turns)
        await engine.start()
        proxy = Proxy(engine, ProxySettings(render_rules=rules))
        await proxy.start()
        try:
            session = proxy.open_session(
                rollout_id="replay",
                harness=Program(ComponentConfig()),
                limits=Limits(),
                folder=tmp_path / "replay",
            )
            async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
                yield Replay(engine, session, client, tmp_path / "replay")
        finally:
            await proxy.stop()
            await engine.stop()

    return open_
