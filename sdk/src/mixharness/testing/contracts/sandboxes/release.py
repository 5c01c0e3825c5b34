"""The contract of a sandbox's end (rule 8): whatever way it ends, nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mixharness.errors import SandboxError
from mixharness.sandbox import Sandbox, SandboxBackend
from mixharness.testing.contracts.sandboxes.base import (
    SandboxFixtures,
    asleep,
    background,
    marker,
    shell,
    spec,
)


async def leave_daemon(sandbox: Sandbox, seconds: str) -> None:
    """Start a program that nobody waits for, and take rights away from the workspace."""
    await shell(sandbox, f"(setsid env -i sleep {seconds} &); mkdir shut; chmod 000 shut .")
    assert await sandbox.processes() == 1


class ReleaseBehaviours(SandboxFixtures):
    """What is left of a sandbox: nothing."""

    async def test_a_normal_end_releases(self, started: SandboxBackend[Any]) -> None:
        """Daemons and files are gone."""
        seconds = marker()
        async with started.open(spec(files={seconds: ""})) as sandbox:
            await leave_daemon(sandbox, seconds)
        assert asleep(seconds) == 0
        assert not Path(sandbox.workspace, seconds).exists()

    async def test_a_raise_inside_releases(self, started: SandboxBackend[Any]) -> None:
        """And passes."""
        seconds = marker()

        async def use() -> None:
            async with started.open(spec(files={seconds: ""})) as sandbox:
                await leave_daemon(sandbox, seconds)
                raise KeyError(sandbox.workspace)

        with pytest.raises(KeyError) as caught:
            await use()
        assert asleep(seconds) == 0
        assert not Path(caught.value.args[0], seconds).exists()

    async def test_a_cancel_releases(self, started: SandboxBackend[Any]) -> None:
        """In the middle of a command."""
        seconds, begun = marker(), asyncio.Event()

        async def use() -> None:
            async with started.open(spec()) as sandbox:
                command = ["sh", "-c", f"echo up; setsid sleep {seconds} & sleep {seconds}"]
                await sandbox.exec(command, on_stdout=lambda _: begun.set())

        task = asyncio.create_task(use())
        await asyncio.wait_for(begun.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asleep(seconds) == 0

    async def test_a_cancelled_opening_releases(self, started: SandboxBackend[Any]) -> None:
        """At whatever moment it comes; the backend opens others afterwards."""

        async def use() -> None:
            async with started.open(spec()):
                await asyncio.sleep(60)

        for delay_s in (0.0, 0.005, 0.02, 0.05):
            task = asyncio.create_task(use())
            await asyncio.sleep(delay_s)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with started.open(spec()) as sandbox:
            assert (await sandbox.exec(["true"])).exit_code == 0

    async def test_a_closed_sandbox_says_so(
        self, started: SandboxBackend[Any], tmp_path: Path
    ) -> None:
        """Each call, each time."""
        async with started.open(spec(files={"f": ""})) as sandbox:
            pass
        for _ in range(2):
            with pytest.raises(SandboxError):
                await sandbox.exec(["true"])
            with pytest.raises(SandboxError):
                await sandbox.read("f")
            with pytest.raises(SandboxError):
                await sandbox.write("f", b"")
            with pytest.raises(SandboxError):
                await sandbox.snapshot(tmp_path / "snapshot")
            with pytest.raises(SandboxError):
                await sandbox.processes()
            with pytest.raises(SandboxError):
                await sandbox.kill()

    async def test_closing_ends_a_command_that_somebody_awaits(
        self, started: SandboxBackend[Any]
    ) -> None:
        """It does not wait for an answer that never comes."""
        async with started.open(spec()) as sandbox:
            running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
            async with background(sandbox, "true"):
                pass
        with pytest.raises(SandboxError):
            await asyncio.wait_for(running, 10)

    async def test_many_open_at_once(self, started: SandboxBackend[Any]) -> None:
        """Each is its own."""

        async def use(number: int) -> bytes:
            async with started.open(spec(files={"n": str(number)})) as sandbox:
                return (await sandbox.exec(["cat", "n"])).stdout

        found = await asyncio.gather(*(use(number) for number in range(8)))
        assert found == [str(number).encode() for number in range(8)]

    async def test_reaping_leaves_open_ones_alone(self, started: SandboxBackend[Any]) -> None:
        """Only what a crashed runner left is removed."""
        async with started.open(spec()) as sandbox:
            assert await started.reap() == 0
            assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"

    async def test_start_and_stop_may_be_repeated(self, component: SandboxBackend[Any]) -> None:
        """A stop without a start, or twice, is fine; a stopped backend starts again."""
        await component.stop()
        for _ in range(2):
            await component.start()
            async with component.open(spec()) as sandbox:
                assert (await sandbox.exec(["true"])).exit_code == 0
            await component.stop()
        await component.stop()

    def test_differences_are_ones_that_can_be_declared(self) -> None:
        """A closed list, so that each is asserted by a test of this contract."""
        assert isinstance(self.differs, frozenset)
