"""The real program against the real proxy: what is trained is what it was shown, to the byte."""

import asyncio
import json
import re
import sys
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from mixharness import FailureKind, Limits, Service, Task
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.proxy.app import Proxy, ProxySettings
from mixharness.proxy.log import read_bodies
from mixharness.proxy.renderer import ChatRenderer
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner
from mixharness.testing import FixedVerifier, mcp_server
from mixharness.testing.doubles import FixedVerifierConfig
from mixharness.types import CallRole, Delivery
from mixharness_claude_code import ClaudeCode, ClaudeCodeConfig

pytestmark = [pytest.mark.anyio, pytest.mark.claude_code]

TURN = "<|im_start|>assistant\n"


def call(arguments: str, name: str = "Bash") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Engine(ScriptedEngine):
    """Plays turns by position in the prompt and keeps the prompts; `{pwd}` is what `pwd` said."""

    failures = 0

    def __init__(self, turns: list[str], context: int = 32_768) -> None:
        super().__init__(ScriptedConfig(script="turns_of_this_test:play", context=context))
        sys.modules["turns_of_this_test"] = SimpleNamespace(play=self.play)
        self.turns, self.prompts = turns, {}

    def play(self, prompt: str) -> str:
        at = prompt.count(TURN) - 1
        found = re.search(r"^/\S+/workspace$", prompt, re.MULTILINE)
        return self.turns[at].replace("{pwd}", found[0] if found else "")

    async def generate(self, request):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("out of memory")
        self.prompts.setdefault(request.session_id, []).append(request.prompt_ids)
        return await super().generate(request)


class Bench:
    def __init__(self, engine, program, folder):
        self.engine, self.program, self.store = engine, program, RunStore(folder)
        self.limits, self.config = Limits(), ClaudeCodeConfig()

    @asynccontextmanager
    async def runner(self):
        await self.engine.start()
        proxy = Proxy(self.engine, ProxySettings(max_tokens=2048, keep_alive_s=0.2))
        await proxy.start()
        try:
            yield Runner(
                proxy=proxy,
                sandbox=LocalSandboxBackend(LocalSandboxConfig()),
                verifiers={"fixed": FixedVerifier(FixedVerifierConfig())},
                store=self.store,
            )
        finally:
            await proxy.stop()

    def request(self, sample=0, **task):
        harness = ClaudeCode(self.config)
        slot = HarnessSlot(
            label="claude_code", harness=harness, program=self.program, limits=self.limits
        )
        given = {"id": "t", "prompt": "Copy a.txt to b.txt.", "files": {"a.txt": "alpha\n"}} | task
        return RolloutRequest(
            task=Task(verifier="fixed", **given), slot=slot, sample=sample, stage="test"
        )

    async def run(self, **task):
        async with self.runner() as runner:
            return await run_one(runner, self.request(**task))

    def text(self, rollout):
        decode = self.engine.tokenizer.tokenizer.decode
        return [decode(c.sampled_ids, skip_special_tokens=False) for c in rollout.calls]

    def bodies(self, rollout, kind):
        found = read_bodies(self.store.path(rollout.id))
        return [body.data for body in found if body.kind == kind]

    def file(self, rollout, name):
        return (self.store.path(rollout.id) / "workspace" / name).read_text()


def sent_blocks(stream: bytes) -> list[tuple[str, str, str]]:
    """Read (id, name, argument characters) of the tool_use blocks in a raw response."""
    blocks: dict[int, list[str]] = {}
    for line in stream.decode().splitlines():
        event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        if event.get("content_block", {}).get("type") == "tool_use":
            block = event["content_block"]
            blocks[event["index"]] = [block["id"], block["name"], ""]
        if event.get("delta", {}).get("type") == "input_json_delta":
            blocks[event["index"]][2] += event["delta"]["partial_json"]
    return [(block[0], block[1], block[2]) for block in blocks.values()]


def assert_bridged(rollout):
    """Each call continues the one before it, and shares all of its tokens."""
    assert [c.fork for c in rollout.calls] == [""] * len(rollout.calls), rollout.calls[-1].fork_span
    for before, after in pairwise(rollout.calls):
        own = before.parent_len + len(before.environment_ids) + len(before.sampled_ids)
        assert (after.parent_call, after.parent_len) == (before.id, own)
        assert after.continues == (before.id,)


ODD_READ = (
    r'{ "description" : "read \u0061 file",' + '\n\t"command":"cat  a.txt" , "timeout" : 5.0e3 }'
)
ODD_COPY = r'{"timeout":60000.00,"command":"printf \"\u00e9 %s\\n\"   \"$(cat a.txt)\" > b.txt"}'


async def test_what_the_program_is_shown_is_what_was_sampled(program, tmp_path):
    turns = [call(ODD_READ), f"Now I copy it.\n{call(ODD_COPY)}", "All  done."]
    bench = Bench(Engine(turns), program, tmp_path)
    rollout = await bench.run()

    assert rollout.failure is None
    assert (rollout.exit.exit_code, rollout.exit.reason) == (0, "completed")
    assert (rollout.exit.final_message, rollout.late_exit) == ("All  done.", False)
    assert bench.file(rollout, "b.txt") == "é alpha\n"
    assert len(rollout.calls) == 3
    assert {(c.role, c.agent, c.delivery) for c in rollout.calls} == {
        (CallRole.MAIN, "", Delivery.DELIVERED)
    }

    assert_bridged(rollout)
    prompts = bench.engine.prompts[rollout.id]
    for number, (before, after) in enumerate(pairwise(rollout.calls)):
        joined = prompts[number] + before.sampled_ids + after.environment_ids
        assert prompts[number + 1] == joined

    assert bench.text(rollout) == [f"{turn}<|im_end|>" for turn in turns]
    renderer = ChatRenderer(bench.engine.tokenizer)
    blocks = [sent_blocks(body) for body in bench.bodies(rollout, "response")]
    assert [[block[1:] for block in sent] for sent in blocks] == [
        list(renderer.parse(c.sampled_ids).tool_calls) for c in rollout.calls
    ]
    assert [block[2] for sent in blocks for block in sent] == [ODD_READ, ODD_COPY]
    assert len({block[0] for sent in blocks for block in sent}) == 2


async def test_arguments_that_the_program_rewrites_are_no_fork(program, tmp_path):
    turns = [
        call('{"command": "pwd"}'),
        call('{"command": "cd {pwd} && ls", "timeout": "5000"}'),
        call(r'{"command": "find . -name \"a*\" -exec echo \\\\u00e9 {} \\\\;"}'),
        call('{"limit": 2.0, "file_path": "{pwd}/a.txt"}', "Read"),
        call(
            r'{"new_string": "beta  \n \n", "old_string": "alpha\n", "file_path": "{pwd}/a.txt"}',
            "Edit",
        ),
        call('{"file_path": "{pwd}/a.txt", "offset": "1"}', "Read"),
        call('{"bogus": 1, "command": "true"}'),
        call('{"command": 5, "timeout": 12345678901234567890}'),
        "done",
    ]
    bench = Bench(Engine(turns), program, tmp_path)
    bench.config = ClaudeCodeConfig(tools=("Bash", "Edit", "Read"))
    rollout = await bench.run()
    assert rollout.failure is None
    assert len(rollout.calls) == len(turns)
    assert bench.file(rollout, "a.txt") == "beta\n\n"
    assert_bridged(rollout)


async def test_runs_at_once_do_not_mix_and_a_group_shares_its_prompt(program, tmp_path):
    copy = call('{"command": "cp a.txt b.txt; cat b.txt"}')
    bench = Bench(Engine([copy, "done"]), program, tmp_path)
    async with bench.runner() as runner:
        one, two, other = await asyncio.gather(
            run_one(runner, bench.request(sample=0)),
            run_one(runner, bench.request(sample=1)),
            run_one(runner, bench.request(id="u", prompt="Else.", files={"a.txt": "beta\n"})),
        )
    assert [r.failure for r in (one, two, other)] == [None] * 3
    for before, after in zip(
        bench.engine.prompts[one.id], bench.engine.prompts[two.id], strict=True
    ):
        assert before == after
    assert [bench.file(r, "b.txt") for r in (one, two, other)] == ["alpha\n", "alpha\n", "beta\n"]
    for rollout, own, foreign in ((one, b"alpha", b"beta"), (other, b"beta", b"alpha")):
        requests = bench.bodies(rollout, "request")
        assert own in requests[1]
        assert not any(foreign in body for body in requests)


@pytest.mark.parametrize("bare", [True, False])
async def test_a_settings_file_in_the_workspace_moves_no_call(program, tmp_path, bare):
    visits = []
    trap = await asyncio.start_server(lambda _, w: (visits.append(1), w.close()), "127.0.0.1", 0)
    port = trap.sockets[0].getsockname()[1]
    settings = json.dumps({"env": {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}"}})
    again = json.dumps({"command": f"mkdir -p .claude; echo '{settings}' > .claude/settings.json"})
    later = call('{"command": "sleep 1"}')  # longer than the program takes to see a changed file
    bench = Bench(Engine([call(again), later, "done"]), program, tmp_path)
    bench.config = ClaudeCodeConfig(bare=bare)
    async with trap:
        rollout = await bench.run(files={".claude/settings.json": settings})
    assert (visits, len(rollout.calls)) == ([], 3)
    assert rollout.exit.final_message == "done"
    assert rollout.failure.kind is FailureKind.ENDPOINT_REDIRECT
    assert_bridged(rollout)


async def test_the_turn_limit_ends_the_run(program, tmp_path):
    bench = Bench(Engine([call('{"command": "true"}')] * 9), program, tmp_path)
    bench.limits = Limits(max_turns=2)
    rollout = await bench.run()
    assert (len(rollout.calls), rollout.exit.exit_code) == (2, 1)
    assert (rollout.exit.reason, rollout.failure.kind) == ("max_turns", FailureKind.MAX_TURNS)


async def test_a_command_that_hangs_comes_back_and_leaves_as_much_time_again(program, tmp_path):
    hang = call('{"command": "sleep 600", "timeout": 600000}')
    bench = Bench(Engine([hang, "It hangs."]), program, tmp_path)
    bench.limits = Limits(agent_s=16.0)
    rollout = await bench.run()
    assert (rollout.failure, rollout.exit.final_message) == (None, "It hangs.")
    assert 8.0 < rollout.agent_s < 16.0
    assert b"Command timed out after 8s" in bench.bodies(rollout, "request")[-1]
    assert_bridged(rollout)


async def test_a_prompt_that_does_not_fit_ends_the_run(program, tmp_path):
    loud = call('{"command": "seq 2000"}')
    bench = Bench(Engine([loud, "done"], context=4096), program, tmp_path)
    rollout = await bench.run()
    assert (len(rollout.calls), rollout.exit.reason) == (1, "context_overflow")
    assert rollout.failure.kind is FailureKind.CONTEXT_OVERFLOW


async def test_a_run_without_a_call_is_the_infrastructures(program, tmp_path):
    rollout = await Bench(Engine(["done"]), program, tmp_path).run(prompt="/help")
    assert rollout.calls == ()
    assert rollout.failure.kind is FailureKind.HARNESS_START


@pytest.mark.parametrize(("failures", "calls"), [(1, 1), (99, 0)])
async def test_a_failing_engine_is_asked_again_and_recorded(program, tmp_path, failures, calls):
    bench = Bench(Engine(["done"]), program, tmp_path)
    bench.engine.failures = failures
    rollout = await bench.run()
    assert len([c for c in rollout.calls if c.sampled_ids]) == calls
    if calls:
        assert (rollout.failure, rollout.exit.final_message) == (None, "done")
    else:
        assert rollout.failure.kind is FailureKind.ENGINE_ERROR
        assert (rollout.exit.exit_code, rollout.exit.reason) == (1, "error")


MCP_PORT = "18473"


async def test_the_tools_of_a_tasks_servers_are_offered(program, tmp_path):
    server = Service(
        name="words",
        command=("python3", "mcp.py", MCP_PORT),
        health=("python3", "mcp.py", MCP_PORT, "check"),
        mcp_url=f"http://127.0.0.1:{MCP_PORT}/mcp",
    )
    files = {"mcp.py": Path(mcp_server.__file__).read_text()}
    bench = Bench(Engine([call("{}", "mcp__words__secret_word"), "done"]), program, tmp_path)
    rollout = await bench.run(files=files, services=(server,))
    assert rollout.failure is None
    assert_bridged(rollout)
    assert (
        mcp_server.WORD.encode()
        in bench.bodies(rollout, "request")[-1].rpartition(b"tool_result")[2]
    )
