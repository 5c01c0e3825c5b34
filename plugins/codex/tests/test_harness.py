"""How a run is started and how it ends, with stand-ins for the program that misbehave."""

import subprocess
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from mixharness import Limits, Program, SandboxSpec, Session, Task
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.testing import HarnessContract
from mixharness_codex import Codex, CodexConfig

DONE = '{"type":"turn.completed"}'
pytestmark = pytest.mark.anyio


@pytest.mark.codex
@pytest.mark.usefixtures("program")
class TestContract(HarnessContract):
    @pytest.fixture
    def component(self) -> Codex:
        return Codex(CodexConfig())


@pytest.mark.codex
def test_the_program_is_the_pinned_release(program):
    executable = program.path / program.executable
    done = subprocess.run([executable, "--version"], capture_output=True, check=True)
    assert done.stdout.split()[-1] == b"0.169.0"
    assert program.path.stat().st_mode & 0o005 == 0o005
    help_page = subprocess.run([executable, "exec", "--help"], capture_output=True, check=True)
    for flag in (b"--json", b"--skip-git-repo-check", b"--ephemeral"):
        assert flag in help_page.stdout


@pytest.fixture
def folder():
    """A folder that the sandbox's user can enter, unlike tmp_path."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def session(folder: Path, script: str, prompt: str = "say done"):
    program = folder / "program" / "codex"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    spec = SandboxSpec(
        rollout_id="r", files={"a.txt": "hello"}, limits=Limits(), program_path=program.parent
    )
    async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as sandbox:
        yield Session(
            task=Task(id="t", prompt=prompt, verifier="none"),
            program=Program(name="fake", version="0", path=program.parent, executable="codex"),
            sandbox=sandbox,
            base_url="http://127.0.0.1:1/r/x/s",
            secret="s",
            limits=spec.limits,
        )


async def test_a_program_that_hangs_after_its_result_is_completed(folder):
    harness = Codex(CodexConfig(late_exit_s=0.2))
    async with session(folder, f"echo '{DONE}'; sleep 600 & wait") as given:
        with anyio.fail_after(10):
            ended = await harness.run(given)
            while await given.sandbox.processes():
                await anyio.sleep(0.01)
    assert (ended.exit_code, ended.reason) == (None, "completed")


@pytest.mark.parametrize(
    ("script", "exit_code", "reason"),
    [
        ("echo oops >&2; exit 3", 3, "error"),
        ("exit 0", 0, "error"),
        ("kill -9 $$", None, "killed"),
        (f"echo '{DONE}'; exit 1", 1, "completed"),
    ],
)
async def test_the_result_decides_and_without_one_the_code(folder, script, exit_code, reason):
    async with session(folder, script) as given:
        ended = await Codex(CodexConfig()).run(given)
    assert (ended.exit_code, ended.reason) == (exit_code, reason)
    assert ("oops" in ended.output) == ("oops" in script)


@pytest.mark.parametrize("system_prompt", ["Be brief.", ""])
async def test_each_run_has_its_own_files_and_the_prompt_is_no_option(folder, system_prompt):
    script = 'printf "%s\\n" "$@" > "$HOME/argv"; env > "$HOME/env"; pwd > "$HOME/cwd"'
    async with session(folder, script, prompt="--help me") as given:
        await Codex(CodexConfig(system_prompt=system_prompt)).run(given)
        home = given.sandbox.home

        async def read(path):
            return (await given.sandbox.read(path)).decode()

        argv = (await read(f"{home}/argv")).splitlines()
        env = dict(line.split("=", 1) for line in (await read(f"{home}/env")).splitlines())
        config = tomllib.loads(await read(f"{env['CODEX_HOME']}/config.toml"))
        assert (await read(f"{home}/cwd")).strip() == given.sandbox.workspace
        if system_prompt:
            assert await read(config["model_instructions_file"]) == system_prompt
    assert argv[-2:] == ["--", "--help me"]
    provider = config["model_providers"]["proxy"]
    assert provider["base_url"] == f"{given.base_url}/v1"
    assert (env["HOME"], env[provider["env_key"]]) == (home, "s")
    assert config["background_terminal_max_timeout"] == given.limits.agent_s / 2 * 1000
    assert not env["CODEX_HOME"].startswith(env["TMPDIR"])
    assert ("model_instructions_file" in config) == bool(system_prompt)


async def test_a_prompt_beyond_one_argument_is_refused(folder):
    async with session(folder, "exit 0", prompt="é" * 65_536) as given:
        with pytest.raises(ValueError, match="task t: prompt exceeds 131071 bytes"):
            await Codex(CodexConfig()).run(given)
