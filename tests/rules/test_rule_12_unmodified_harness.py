"""Rule 12: the harness is the released program, configured by its documented flags.

The policy looks for itself: its first command runs below the program and reads what `/proc` says.
"""

import hashlib
import json
import platform
import subprocess

import anyio
import orjson
import pytest

from mixharness.proxy.log import read_bodies
from mixharness.rollout.cache import cache_dir
from mixharness.rollout.run_one import run_one
from mixharness.rollout.types import HarnessSlot, RolloutRequest
from mixharness_claude_code import ClaudeCode, ClaudeCodeConfig

pytestmark = [pytest.mark.anyio, pytest.mark.claude_code]

RELEASED = {
    "x86_64": "a982d38030b97e750848add2cbb2df6d9a70d5544a22ca9b216a349ba25865e8",
    "aarch64": "307f8bada27b37db7553fac75e86004e3dbff5a931ffc611b54fe710ce1eb521",
}
"""SHA-256 of `package/claude` in the npm tarballs of release 2.1.328."""
NOT_IN_HELP = {"--max-turns"}
"""Documented in the CLI reference (code.claude.com/docs/en/cli-reference), not by `--help`."""
LOOK = """
tr '\\0' '\\n' < /proc/$PPID/cmdline | grep -o '^--[a-z-]\\+$'
sha256sum < /proc/$PPID/exe
"""


@pytest.fixture(scope="module")
def program():
    return anyio.run(ClaudeCode(ClaudeCodeConfig()).install, cache_dir())


async def test_the_running_program_is_the_release_with_documented_flags(bench, program):
    executable = program.path / program.executable
    engine = bench.engine(bench.call(LOOK).replace('"bash"', '"Bash"'), "Done.")
    async with bench.open(engine) as runner:
        slot = HarnessSlot(
            label="claude_code",
            harness=ClaudeCode(ClaudeCodeConfig()),
            program=program,
            limits=bench.limits,
        )
        request = RolloutRequest(task=bench.task, slot=slot, sample=0, stage="rule")
        rollout = await run_one(runner, request)
    assert (rollout.failure, len(rollout.calls)) == (None, 2)

    bodies = read_bodies(bench.store.path(rollout.id))
    last = orjson.loads([body.data for body in bodies if body.kind == "request"][-1])
    (result,) = last["messages"][-1]["content"]
    flags = {line for line in _text(result).splitlines() if line.startswith("--")} - {"--"}
    help_page = subprocess.run([executable, "--help"], capture_output=True, text=True, check=True)
    assert {"--print", "--settings", "--bare"} <= flags
    assert {flag for flag in flags - NOT_IN_HELP if f" {flag} " not in help_page.stdout} == set()

    released = RELEASED[platform.machine()]
    assert f"{released}  -" in _text(result)
    with executable.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == released


def _text(result):
    content = result["content"]
    return content if isinstance(content, str) else json.dumps(content)
