import subprocess

import pytest
from pydantic import ValidationError

from mixharness.errors import ProgramMissingError
from mixharness_claude_code import ClaudeCode, ClaudeCodeConfig
from mixharness_claude_code.install import _open_to_all, _publish, executable


def test_a_missing_program_names_the_command(tmp_path):
    with pytest.raises(ProgramMissingError, match="mixharness harness install claude_code"):
        ClaudeCode(ClaudeCodeConfig()).find(tmp_path)


def test_a_half_installation_is_not_found(tmp_path):
    (tmp_path / "claude_code" / "2.1.328").mkdir(parents=True)
    with pytest.raises(ProgramMissingError):
        ClaudeCode(ClaudeCodeConfig()).find(tmp_path)


@pytest.mark.anyio
async def test_a_failed_installation_leaves_nothing_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("npm_config_offline", "true")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    harness = ClaudeCode(ClaudeCodeConfig())
    with pytest.raises(RuntimeError, match="npm could not install"):
        await harness.install(tmp_path / "cache")
    assert list((tmp_path / "cache" / "claude_code").iterdir()) == []


def test_the_folder_is_opened_to_all_users(tmp_path):
    (tmp_path / "sub").mkdir(mode=0o700)
    for name, mode in (("program", 0o700), ("text", 0o600)):
        (tmp_path / "sub" / name).touch(mode)
    _open_to_all(tmp_path)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("sub", "sub/program")]
    assert modes == [0o755, 0o755]
    assert (tmp_path / "sub" / "text").stat().st_mode & 0o777 == 0o644


def test_the_second_of_two_installations_gives_way(tmp_path):
    for name in ("first", "second"):
        program = tmp_path / name / executable()
        program.parent.mkdir(parents=True)
        program.write_text(name)
    _publish(tmp_path / "first", tmp_path / "target")
    _publish(tmp_path / "second", tmp_path / "target")
    assert (tmp_path / "target" / executable()).read_text() == "first"


@pytest.mark.claude_code
def test_the_program_is_the_pinned_release(program):
    done = subprocess.run(
        [program.path / program.executable, "--version"], capture_output=True, check=True
    )
    assert done.stdout.split()[0] == b"2.1.328"
    assert program.path.stat().st_mode & 0o005 == 0o005


@pytest.mark.parametrize("tools", [("Write",), ("Bash", "bash")])
def test_tools_that_bare_mode_would_drop_silently_are_refused(tools):
    with pytest.raises(ValidationError, match="bare = false"):
        ClaudeCodeConfig(tools=tools)
    assert ClaudeCodeConfig(tools=tools, bare=False).tools == tools
