"""How a run is started and how it ends, with stand-ins for the program that misbehave."""

import json
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from mixharness import Limits, Program, SandboxSpec, Session, Task
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.testing import HarnessContract
from mixharness_claude_code import ClaudeCode, ClaudeCodeConfig

RESULT = '{"type":"result","is_error":false,"terminal_reason":"completed","result":"done"}'
pytestmark = pytest.mark.anyio


@pytest.mark.claude_code
@pytest.mark.usefixtures("program")
class TestContract(HarnessContract):
    @pytest.fixture
    def component(self) -> ClaudeCode:
        return ClaudeCode(ClaudeCodeConfig())


@pytest.fixture
def folder():
    """A folder that the sandbox's user can enter, unlike tmp_path."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def session(folder: Path, script: str, prompt: str = "say done"):
    program = folder / "program" / "claude"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    spec = SandboxSpec(
        rollout_id="r", files={"a.txt": "hello"}, limits=Limits(), program_path=program.parent
    )
    async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as sandbox:
        yield Session(
            task=Task(id="t", prompt=prompt, verifier="none"),
            program=Program(name="fake", version="0", path=program.parent, executable="claude"),
            sandbox=sandbox,
            base_url="http://127.0.0.1:1/r/x/s",
            secret="s",
            limits=spec.limits,
        )


async def test_a_program_that_hangs_after_its_result_is_completed(folder):
    script = f"echo '{RESULT}'; sleep 600 & wait"
    harness = ClaudeCode(ClaudeCodeConfig(late_exit_s=0.2))
    async with session(folder, script) as given:
        with anyio.fail_after(10):
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
        (f"echo '{RESULT}'; exit 1", 1, "completed"),
    ],
)
async def test_the_result_decides_and_without_one_the_code(folder, script, exit_code, reason):
    async with session(folder, script) as given:
        ended = await ClaudeCode(ClaudeCodeConfig()).run(given)
    assert (ended.exit_code, ended.reason) == (exit_code, reason)
    assert ("oops" in ended.output) == ("oops" in script)


async def test_the_address_is_given_twice_and_the_prompt_is_no_option(folder, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "of-the-host")
    script = 'printf "%s\\n" "$@" > "$HOME/argv"; env > "$HOME/env"; pwd > "$HOME/cwd"'
    async with session(folder, script, prompt="--help me") as given:
        await ClaudeCode(ClaudeCodeConfig(bare=False, tools=("Bash", "Write"))).run(given)
        home, workspace = given.sandbox.home, given.sandbox.workspace
        argv = (await given.sandbox.read(f"{home}/argv")).decode().splitlines()
        env = dict(
            line.split("=", 1)
            for line in (await given.sandbox.read(f"{home}/env")).decode().splitlines()
        )
        cwd = (await given.sandbox.read(f"{home}/cwd")).decode().strip()
    assert argv[-2:] == ["--", "--help me"]
    assert argv[argv.index("--setting-sources") + 1] == ""
    settings = json.loads(argv[argv.index("--settings") + 1])
    assert settings["env"]["ANTHROPIC_BASE_URL"] == env["ANTHROPIC_BASE_URL"] == given.base_url
    assert argv[argv.index("--tools") + 1] == "Bash,Write"
    assert "--bare" not in argv
    assert (env["HOME"], env["ANTHROPIC_API_KEY"], cwd) == (home, "s", workspace)
    assert "ANTHROPIC_AUTH_TOKEN" not in env
    # The program's own 120 s are less than half of the agent's time, its own 600 s are more.
    assert (env["BASH_DEFAULT_TIMEOUT_MS"], env["BASH_MAX_TIMEOUT_MS"]) == ("120000", "150000")


async def test_a_prompt_beyond_one_argument_is_refused(folder):
    async with session(folder, "exit 0", prompt="é" * 65_536) as given:
        with pytest.raises(ValueError, match="task t: prompt exceeds 131071 bytes"):
            await ClaudeCode(ClaudeCodeConfig()).run(given)
