"""How a run is started and how it ends, with stand-ins for the program that misbehave."""

import json
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from mixharness import Limits, Program, SandboxSpec, Service, Session, Task
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.npm import NODE
from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.testing import HarnessContract
from mixharness_openclaw import OpenClaw, OpenClawConfig

DONE = json.dumps({"payloads": [{"text": "done"}], "meta": {"stopReason": "stop"}}, indent=1)
FAILED = json.dumps({"ok": False, "error": {"type": "cli_error", "message": "no model"}}, indent=1)
WORDS = Service(name="words", command=("true",), health=("true",), mcp_url="http://localhost:2/mcp")
pytestmark = pytest.mark.anyio


@pytest.mark.openclaw
@pytest.mark.usefixtures("program")
class TestContract(HarnessContract):
    @pytest.fixture
    def component(self) -> OpenClaw:
        return OpenClaw(OpenClawConfig())


@pytest.mark.openclaw
def test_the_program_is_the_pinned_release_with_a_node_of_its_own(program):
    node, main = program.path / NODE, program.path / program.executable
    done = subprocess.run([node, main, "--version"], capture_output=True, check=True, env={})
    assert done.stdout.split()[1] == b"2026.9.6"
    assert program.path.stat().st_mode & 0o005 == 0o005
    # What npm left to the first start is done: sandboxes mount this folder read-only.
    assert not (main.parent / ".openclaw-lifecycle-pending").exists()


@pytest.fixture
def folder():
    """A folder that the sandbox's user can enter, unlike tmp_path."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def session(folder: Path, script: str, **task):
    program = folder / "program"
    program.mkdir()
    (program / NODE).write_text(f"#!/bin/bash\n{script}\n")
    (program / NODE).chmod(0o755)
    spec = SandboxSpec(rollout_id="r", limits=Limits(), program_path=program)
    async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as sandbox:
        yield Session(
            task=Task(**{"id": "t", "prompt": "say done", "verifier": "none"} | task),
            program=Program(name="fake", version="0", path=program, executable="openclaw.mjs"),
            sandbox=sandbox,
            base_url="http://127.0.0.1:1/r/x/s",
            secret="s",
            limits=spec.limits,
        )


async def test_a_program_that_hangs_after_its_result_is_completed(folder):
    harness = OpenClaw(OpenClawConfig(late_exit_s=0.2))
    async with session(folder, f"echo '{DONE}'; sleep 600 & wait") as given:
        with anyio.fail_after(20):
            ended = await harness.run(given)
            while await given.sandbox.processes():
                await anyio.sleep(0.01)
    assert (ended.exit_code, ended.reason, ended.final_message) == (None, "completed", "done")


@pytest.mark.parametrize(
    ("script", "exit_code", "reason"),
    [
        ("echo oops >&2; exit 3", 3, "error"),
        ("exit 0", 0, "error"),
        ("kill -9 $$", None, "killed"),
        (f"echo '{DONE}'; exit 1", 1, "completed"),
        (f"echo '{FAILED}'; exit 0", 0, "error"),
    ],
)
async def test_the_result_decides_and_without_one_the_code(folder, script, exit_code, reason):
    async with session(folder, script) as given:
        ended = await OpenClaw(OpenClawConfig()).run(given)
    assert (ended.exit_code, ended.reason) == (exit_code, reason)
    assert ("oops" in ended.output) == ("oops" in script)


async def test_each_run_has_its_own_files_and_the_prompt_is_no_option(folder):
    script = 'printf "%s\\n" "$@" > "$HOME/argv"; env > "$HOME/env"; pwd > "$HOME/cwd"'
    long = "--help me é\n" * 20_000  # more than fits into one argument
    async with session(folder, script, prompt=long, services=(WORDS,)) as given:
        await OpenClaw(OpenClawConfig(time="2026-02-03 04:05")).run(given)
        home = given.sandbox.home

        async def read(path):
            return (await given.sandbox.read(path)).decode()

        argv = (await read(f"{home}/argv")).splitlines()
        env = dict(line.split("=", 1) for line in (await read(f"{home}/env")).splitlines())
        config = json.loads(await read(env["OPENCLAW_CONFIG_PATH"]))
        message = await read(argv[argv.index("--message-file") + 1])
        assert (await read(f"{home}/cwd")).strip() == given.sandbox.workspace
    assert message == f"[2026-02-03 04:05] {long}"
    assert (env["HOME"], env["OPENCLAW_STATE_DIR"]) == (home, f"{home}/state")
    provider = config["models"]["providers"]["proxy"]
    assert (provider["baseUrl"], provider["apiKey"]) == (f"{given.base_url}/v1", "s")
    assert config["agents"]["defaults"]["workspace"] == given.sandbox.workspace
    assert config["mcp"]["servers"]["words"]["url"] == WORDS.mcp_url
    assert config["tools"]["exec"]["timeoutSeconds"] == given.limits.agent_s / 2


SPAWNED = json.dumps(
    {
        "status": "ok",
        "result": {"payloads": [{"text": "told"}], "acceptedSessionSpawns": [{"runId": "1"}]},
    },
    indent=1,
)
# A stand-in that writes down what it is asked for, and serves as a Gateway until it is killed.
SERVES = """
echo "${*:3}" >> "$HOME/asked"
case "${*:3}" in
"gateway run") echo "http server listening"; exec sleep 600 ;;
"gateway suspend "*) exit %d ;;
*) echo '%s' ;;
esac"""


@pytest.mark.parametrize(("printed", "waited"), [(SPAWNED, True), (DONE, False)])
async def test_a_gateway_is_there_for_the_run_and_what_was_spawned_is_waited_for(
    folder, printed, waited
):
    harness = OpenClaw(OpenClawConfig(launch="gateway"))
    async with session(folder, SERVES % (0, printed)) as given:
        ended = await harness.run(given)
        with anyio.fail_after(20):
            while await given.sandbox.processes():
                await anyio.sleep(0.01)
        home = given.sandbox.home
        asked = (await given.sandbox.read(f"{home}/asked")).decode().splitlines()
        config = json.loads(await given.sandbox.read(f"{home}/openclaw.json"))
    assert (ended.reason, ended.final_message) == ("completed", "told" if waited else "done")
    assert asked[0] == "gateway run"
    assert asked[1].startswith("agent --session-id")
    assert "--local" not in asked[1]
    assert [line[:22] for line in asked[2:]] == ["gateway suspend --wait"] * waited
    assert config["gateway"]["bind"] == "loopback"
    assert config["gateway"]["auth"] == {"mode": "token", "token": given.secret}


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo oops >&2; exit 78", "Gateway ended with exit code 78: oops"),
        (SERVES % (1, SPAWNED), "did not become idle"),
    ],
)
async def test_a_gateway_that_fails_is_an_error(folder, script, complaint):
    async with session(folder, script) as given:
        with pytest.raises(RuntimeError, match=complaint), anyio.fail_after(20):
            await OpenClaw(OpenClawConfig(launch="gateway")).run(given)


def test_the_day_can_be_taken_out_of_the_prompt():
    system = "## Temporal Context\nCurrent date: 2026-12-01\nTime zone: UTC"
    messages = tuple(
        ChatMessage(role=role, content=text)
        for role, text in (("system", system), ("user", "Current date: when?\n"))
    )
    (rule,) = OpenClaw.render_rules
    said = rule.apply(ChatRequest(messages=messages), lambda _: {}).messages
    assert said[0].content == "## Temporal Context\nTime zone: UTC"
    assert said[1] == messages[1]


def test_an_overflow_is_told_only_to_a_program_that_may_sum_up():
    assert OpenClaw(OpenClawConfig()).ends_at_overflow
    assert not OpenClaw(OpenClawConfig(compact=True)).ends_at_overflow
