"""What all topics of the sandbox contract share: fixtures, declared differences, specs, markers."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, ClassVar

import psutil
import pytest

from mixharness.sandbox import ExecResult, Sandbox, SandboxBackend, SandboxSpec
from mixharness.testing.contracts.component import ComponentContract
from mixharness.types import Limits

_numbers = itertools.count(1)


class Behaviour(Enum):
    """Where backends may differ. A declared difference is asserted as well, never skipped."""

    IMAGES = (
        "a task's image is used; one that is missing is an error that names it",
        "a task with an image is refused before the run",
    )
    WORKSPACE_PATH = (
        "the workspace lies at the path that the task names",
        "a task that names a path is refused before the run",
    )
    HOST_FILES = (
        "files of the host cannot be read",
        "files that the host lets everybody read can be read",
    )
    HOST_PROCESSES = ("processes of the host cannot be seen", "processes of the host can be seen")
    PROGRAM = (
        "the program's folder is read-only",
        "the program's folder has the host's rights",
    )
    TMP = ("/tmp is the sandbox's own", "/tmp is the host's (`TMPDIR` is the sandbox's own)")
    PRIVATE = (
        "no sandbox can read another's files",
        "a sandbox can read another's files where it guesses their path",
    )
    OUTSIDE = ("addresses outside cannot be reached, and fail at once", "the network is the host's")
    HOST_SERVICES = (
        "other services of the host cannot be reached",
        "other services of the host can be reached",
    )
    NO_NETWORK = (
        "a grader's sandbox reaches nothing, the proxy neither",
        "a grader's sandbox reaches what the host reaches",
    )
    MEMORY = (
        "`memory_mb` is for all processes of the sandbox together",
        "`memory_mb` is for the private memory of each process",
    )
    DISK = (
        "beyond `disk_mb`, writing fails (ENOSPC)",
        "beyond `disk_mb`, the snapshot is refused (EFBIG)",
    )
    PROCESSES = ("`processes` is never exceeded", "`processes` is not enforced")

    def __init__(self, usual: str, instead: str) -> None:
        self.usual = usual
        self.instead = instead


def spec(**changes: Any) -> SandboxSpec:
    """Return a spec with a rollout id of its own and default limits."""
    start = {"rollout_id": f"contract-{os.getpid()}-{next(_numbers)}", "limits": Limits()}
    return SandboxSpec(**{**start, **changes})


def marker() -> str:
    """Return a number of seconds that no other `sleep` on this machine has."""
    return f"{3600 + next(_numbers)}.{os.getpid()}"


def asleep(seconds: str) -> int:
    """Return how many living `sleep seconds` this machine runs, in whatever container."""
    found = 0
    for process in psutil.process_iter(["cmdline", "status"]):
        argv, status = process.info["cmdline"], process.info["status"]
        found += argv == ["sleep", seconds] and status != psutil.STATUS_ZOMBIE
    return found


async def becomes(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    """Wait until a condition holds; return whether it came to that."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def shell(sandbox: Sandbox, script: str, timeout_s: float = 120.0) -> ExecResult:
    """Run a shell script that must not take longer."""
    result = await sandbox.exec(["sh", "-c", script], timeout_s=timeout_s)
    assert not result.timed_out, (script, result)
    return result


@asynccontextmanager
async def background(sandbox: Sandbox, script: str) -> AsyncIterator[asyncio.Task[ExecResult]]:
    """Run a shell script beside the test, from when it has begun; its first output is `up`."""
    begun = asyncio.Event()
    command = sandbox.exec(["sh", "-c", f"echo up; {script}"], on_stdout=lambda _: begun.set())
    running = asyncio.create_task(command)
    try:
        await asyncio.wait_for(begun.wait(), 20)
        yield running
    finally:
        running.cancel()
        await asyncio.wait({running})


class SandboxFixtures(ComponentContract):
    """Base of the topics.

    Attributes:
        differs: what holds otherwise for the backend under test.
    """

    differs: ClassVar[frozenset[Behaviour]] = frozenset()

    @pytest.fixture
    async def started(self, component: SandboxBackend[Any]) -> AsyncIterator[SandboxBackend[Any]]:
        """The backend between `start` and `stop`."""
        await component.start()
        yield component
        await component.stop()

    @pytest.fixture
    async def opened(self, started: SandboxBackend[Any]) -> AsyncIterator[Sandbox]:
        """An open sandbox with the file `in.txt`."""
        async with started.open(spec(files={"in.txt": "grüße\n"})) as sandbox:
            yield sandbox
