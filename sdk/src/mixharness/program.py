"""Running a released program in its sandbox to its result: what such harnesses have in common.

Which program, and what it prints, is each plugin's; putting it on this machine is npm.py's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from mixharness.harness import Session
from mixharness.sandbox import Sandbox
from mixharness.types import HarnessExit, Limits, Task

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes; Linux's limit for one argument of a command."""
_TAIL = 2000


class ProgramOutput(ABC):
    """What a program prints, taken in chunks and read line by line.

    Attributes:
        reason: how the run ended, in `HarnessExit`'s words; empty as long as there is no result.
        message: the agent's last message, or what went wrong.
        tail: the end of what was printed, for people.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.message = ""
        self.tail = b""
        self._line = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take a chunk; a line may be spread over many."""
        self.tail = (self.tail + chunk)[-_TAIL:]
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self.read(bytes(self._line) + line)
            self._line.clear()
        self._line += rest

    @abstractmethod
    def read(self, line: bytes) -> None:
        """Read a whole line, without its end; a line that says nothing is passed over."""


async def run_to_result(
    sandbox: Sandbox,
    argv: Sequence[str],
    env: Mapping[str, str],
    output: ProgramOutput,
    late_exit_s: float,
) -> HarnessExit:
    """Run a program until it exits, or until it has been silent for a while after its result.

    Its result decides how the run ended. Only without one the exit code does, as a killed program
    or as an error; a program that was killed after its result has no exit code but is completed.
    """
    loop = asyncio.get_running_loop()

    def on_stdout(chunk: bytes) -> None:
        output.feed(chunk)
        if output.reason and not late_exit.expired():
            late_exit.reschedule(loop.time() + late_exit_s)

    code, complaints = None, b""
    try:
        async with asyncio.timeout(None) as late_exit:
            done = await sandbox.exec(argv, env=env, on_stdout=on_stdout)
            code, complaints = done.exit_code, done.stderr
    except TimeoutError:
        if not late_exit.expired():
            raise
    killed = code is None or code < 0
    return HarnessExit(
        exit_code=None if killed else code,
        output=(output.tail + complaints[-_TAIL:]).decode(errors="replace"),
        final_message=output.message,
        reason=output.reason or ("killed" if killed else "error"),
    )


def executable(session: Session) -> str:
    """Return the path in the sandbox of the session's program.

    Raises:
        ValueError: the session has none.
    """
    if session.program is None:
        raise ValueError("this harness needs its installed program in the session")
    return f"{session.sandbox.program_path}/{session.program.executable}"


def prompt_argument(task: Task) -> str:
    """Return a task's prompt, to be given as one argument of a command.

    Raises:
        ValueError: it is too long for that.
    """
    if len(task.prompt.encode()) > LONGEST_ARGUMENT:
        raise ValueError(f"task {task.id}: prompt exceeds {LONGEST_ARGUMENT} bytes")
    return task.prompt


def command_timeout_s(limits: Limits, own_s: float) -> float:
    """Return after how many seconds a program is to end one command of the policy.

    A command that hangs is then an answer of a tool, after which the agent has as much time again,
    and not the end of the rollout.

    Args:
        limits: the rollout's.
        own_s: what the program allows by itself, which is never raised.
    """
    return min(own_s, limits.agent_s / 2)


def mcp_servers(task: Task) -> dict[str, str]:
    """Return the MCP servers among a task's services: name to address in the sandbox."""
    return {service.name: service.mcp_url for service in task.services if service.mcp_url}
