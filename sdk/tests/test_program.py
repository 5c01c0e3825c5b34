import anyio
import pytest

from mixharness import Limits, SandboxSpec, Task
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.program import (
    LONGEST_ARGUMENT,
    ProgramOutput,
    command_timeout_s,
    prompt_argument,
    run_to_result,
)


class Said(ProgramOutput):
    """Takes the line `end REASON` for a result."""

    def read(self, line: bytes) -> None:
        word, _, rest = line.decode().partition(" ")
        if word == "end":
            self.reason = rest
        self.message = line.decode()


def said(*chunks: bytes) -> Said:
    output = Said()
    for chunk in chunks:
        output.feed(chunk)
    return output


def test_lines_are_read_whole_however_they_are_cut():
    text = "one\ncafé\nend completed\n".encode()
    for cut in range(len(text)):
        assert said(text[:cut], text[cut:]).reason == "completed"
    assert said("café\nend com".encode(), b"pleted").message == "café"
    assert said(b"x" * 1500, b"y" * 1500).tail == b"x" * 500 + b"y" * 1500


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("script", "exit_code", "reason"),
    [
        ("echo end completed; exit 1", 1, "completed"),
        ("echo end completed; sleep 600 & wait", None, "completed"),
        ("echo oops >&2; exit 3", 3, "error"),
        ("exit 0", 0, "error"),
        ("kill -9 $$", None, "killed"),
    ],
)
async def test_the_result_decides_and_without_one_the_code(script, exit_code, reason):
    spec = SandboxSpec(rollout_id="r", limits=Limits())
    async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as sandbox:
        with anyio.fail_after(20):
            ended = await run_to_result(sandbox, ["bash", "-c", script], {}, Said(), 0.2)
            while await sandbox.processes():
                await anyio.sleep(0.01)
    assert (ended.exit_code, ended.reason) == (exit_code, reason)
    assert ("oops" in ended.output) == ("oops" in script)


def test_a_prompt_beyond_one_argument_is_refused():
    fits = Task(id="t", prompt="x" * LONGEST_ARGUMENT, verifier="none")
    assert prompt_argument(fits) == fits.prompt
    with pytest.raises(ValueError, match="task t: prompt exceeds 131071 bytes"):
        prompt_argument(Task(id="t", prompt="é" * 65_536, verifier="none"))


def test_a_command_gets_half_of_the_agents_time_and_no_more_than_the_program_allows():
    assert command_timeout_s(Limits(agent_s=8.0), 120.0) == 4.0
    assert command_timeout_s(Limits(agent_s=800.0), 120.0) == 120.0
