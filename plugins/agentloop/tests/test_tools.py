import json
from collections.abc import AsyncIterator

import pytest

from mixharness import Sandbox, SandboxSpec
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.types import Limits
from mixharness_agentloop.tools import TOOLS, Toolbox, ToolResult

pytestmark = pytest.mark.anyio

FILES = {"a.txt": "one two one\n", "latin.bin": "x"}


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    spec = SandboxSpec(rollout_id="r", files=FILES, limits=Limits())
    async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as opened:
        yield opened


@pytest.fixture
def toolbox(sandbox: Sandbox) -> Toolbox:
    return Toolbox(sandbox, 200, 1.0)


async def call(toolbox: Toolbox, name: str, arguments: object) -> ToolResult:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return await toolbox.call(tuple(TOOLS), {"name": name, "arguments": text})


async def test_bash_shows_both_outputs_and_a_bad_exit_code(toolbox: Toolbox) -> None:
    script = {"command": "cat a.txt; echo bad >&2; exit 3"}
    assert (await call(toolbox, "bash", script)).text == "one two one\nbad\n[exit code 3]"
    assert (await call(toolbox, "bash", {"command": "true"})).text == "(no output)"


async def test_bash_has_a_time_limit(toolbox: Toolbox) -> None:
    result = await call(toolbox, "bash", {"command": "echo begun; sleep 60"})
    assert result == ToolResult("begun\n[timed out after 1 s]", True)


async def test_long_output_loses_its_middle(toolbox: Toolbox) -> None:
    text = (await call(toolbox, "bash", {"command": "seq 1000"})).text
    assert text.startswith("1\n2\n")
    assert text.endswith("999\n1000")
    assert "\n[3692 characters left out]\n" in text


async def test_read_write_and_edit_go_to_the_workspace(toolbox: Toolbox, sandbox: Sandbox) -> None:
    written = await call(toolbox, "write", {"path": "new/b.txt", "content": "grün"})
    assert written.text == "wrote new/b.txt"
    assert (await call(toolbox, "read", {"path": "new/b.txt"})).text == "grün"
    edit = {"path": "a.txt", "old": "two", "new": "2"}
    assert (await call(toolbox, "edit", edit)).text == "edited a.txt"
    assert await sandbox.read("a.txt") == b"one 2 one\n"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", {"path": "no.txt"}, "error: no such file: no.txt"),
        ("edit", {"path": "no.txt", "old": "a", "new": "b"}, "error: no such file: no.txt"),
        (
            "edit",
            {"path": "a.txt", "old": "one", "new": ""},
            "error: old must occur once in a.txt, not 2 times",
        ),
        (
            "edit",
            {"path": "a.txt", "old": "", "new": ""},
            "error: old must occur once in a.txt, not 0 times",
        ),
    ],
)
async def test_what_cannot_be_done_is_said(
    toolbox: Toolbox, name: str, arguments: dict[str, str], expected: str
) -> None:
    assert await call(toolbox, name, arguments) == ToolResult(expected, True)


async def test_an_error_does_not_show_where_the_workspace_is(toolbox: Toolbox) -> None:
    result = await call(toolbox, "read", {"path": "."})
    assert result.text.startswith("error: cat: ")
    assert "mixharness-sandbox" not in (await call(toolbox, "read", {"path": "a.txt/x"})).text


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("Bash", {"command": "true"}, "error: no tool 'Bash'; use bash, read, write, edit"),
        ("bash", "{not json", "error: the arguments of bash are not valid JSON"),
        ("bash", "[]", "error: bash takes command"),
        ("bash", {"command": "true", "extra": "x"}, "error: bash takes command"),
        ("write", {"path": "x"}, "error: write takes path, content"),
        ("bash", {"command": 5}, "error: the arguments of bash must be text"),
        ("bash", {"command": "a\0b"}, "error: the arguments of bash must be text"),
        ("bash", '{"command": "\\ud800"}', "error: the arguments of bash must be text"),
    ],
)
async def test_a_call_that_cannot_be_understood_gets_an_error(
    toolbox: Toolbox, name: str, arguments: object, expected: str
) -> None:
    assert await call(toolbox, name, arguments) == ToolResult(expected, False)


def test_schemas_are_short() -> None:
    assert TOOLS["bash"].schema() == {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a shell command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
    assert sum(len(json.dumps(tool.schema())) for tool in TOOLS.values()) < 1000
