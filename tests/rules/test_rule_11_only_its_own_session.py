"""Rule 11: a rollout reaches only its own session; no grader, no answer beside a running agent."""

import httpx
import orjson
import pytest

from mixharness import Task
from mixharness.builtin.exact_match import ExactMatch, ExactMatchConfig
from mixharness.proxy.log import read_bodies

pytestmark = pytest.mark.anyio


async def test_no_mixture_of_keys_reaches_another_session(bench, tmp_path):
    async with bench.open(bench.engine("Hello.")) as runner:
        own, other = [
            runner.proxy.open_session(
                rollout_id=name,
                harness=bench.agentloop(),
                limits=bench.limits,
                folder=tmp_path / name,
            )
            for name in ("own", "other")
        ]
        assert own.secret != other.secret
        assert min(len(own.secret), len(other.secret)) >= 32
        path_of_other = own.base_url.replace("/own/", "/other/")
        body = {"messages": [{"role": "user", "content": "Hello?"}]}
        statuses = []
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            for base_url, key in [
                (own.base_url, own.secret),
                (path_of_other, own.secret),
                (path_of_other, other.secret),
                (other.base_url, own.secret),
            ]:
                headers = {"authorization": f"Bearer {key}"}
                url = f"{base_url}/v1/chat/completions"
                statuses.append((await client.post(url, json=body, headers=headers)).status_code)
    assert statuses == [200, 403, 403, 401]
    assert (len(own.calls), len(other.calls)) == (1, 0)
    assert [note.split(":")[0] for note in other.notes] == ["foreign_call"] * 3


class Looking(ExactMatch):
    """Notes which sandboxes exist while it grades."""

    def __init__(self, temporary):
        super().__init__(ExactMatchConfig())
        self.temporary, self.seen = temporary, []

    async def score(self, task, rollout, workspace):
        self.seen.append(list(self.temporary.glob("mixharness-sandbox-*")))
        return await super().score(task, rollout, workspace)


async def test_the_agent_finds_no_answer_and_the_grader_no_sandbox(bench, temporary):
    bench.task = Task(
        id="riddle", prompt="?", verifier="exact_match", files={"a": "b"}, answer={"text": "sesame"}
    )
    bench.verifier = Looking(temporary)
    search = bench.call("setsid sleep 4811 & grep -rls ses[a]me .. $HOME /proc/self/environ; ls")
    rollout = await bench.run(bench.engine(search, "Done."))
    bodies = read_bodies(bench.store.path(rollout.id))
    results = orjson.loads([b.data for b in bodies if b.kind == "request"][1])["messages"]
    assert results[-1]["content"] == "a"
    assert (rollout.failure, rollout.reward) == (None, 0.0)
    assert bench.verifier.seen == [[]]
