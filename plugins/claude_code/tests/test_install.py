import subprocess

import pytest
from pydantic import ValidationError

from mixharness.errors import ProgramMissingError
from mixharness_claude_code import ClaudeCode, ClaudeCodeConfig


def test_a_missing_program_names_the_command(tmp_path):
    with pytest.raises(ProgramMissingError, match="mixharness harness install claude_code"):
        ClaudeCode(ClaudeCodeConfig()).find(tmp_path)


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
