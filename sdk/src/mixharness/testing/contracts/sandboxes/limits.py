"""The contract of resource limits: memory, processes, file size. The disk's is in files.py."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mixharness.sandbox import SandboxBackend
from mixharness.testing.contracts.sandboxes.base import (
    Behaviour,
    SandboxFixtures,
    marker,
    shell,
    spec,
)
from mixharness.types import Limits

FORK_BOMB = "f() { f | f & }; f; sleep 60"
# Two that each keep 150 MB in memory until both have it.
TWO_EATERS = """
eat() {
  { head -c 170000000 /dev/zero; : > full$1
    until [ -e full1 ] && [ -e full2 ]; do sleep 0.05; done; } | tail -c 150000000 | wc -c
}
eat 1 > size1 & eat 2 > size2 & wait; cat size1 size2
"""


class LimitBehaviours(SandboxFixtures):
    """What a program that wants all of a machine gets."""

    async def test_a_memory_bomb(self, started: SandboxBackend[Any]) -> None:
        """It dies; the sandbox goes on."""
        async with started.open(spec(limits=Limits(memory_mb=256))) as sandbox:
            bomb = "head -c 900000000 /dev/zero | tail -c 800000000 | wc -c"
            result = await shell(sandbox, bomb)
            assert int(result.stdout) < 800_000_000
            assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"

    async def test_address_space_is_not_memory(self, started: SandboxBackend[Any]) -> None:
        """Node and others reserve gigabytes that they never touch."""
        reserve = (
            "import mmap; flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS; "
            "mmap.mmap(-1, 20 << 30, flags=flags, prot=0); print('reserved')"
        )
        async with started.open(spec(limits=Limits(memory_mb=256))) as sandbox:
            result = await sandbox.exec(["python3", "-c", reserve])
        assert (result.stdout, result.stderr) == (b"reserved\n", b"")

    async def test_memory_of_several_processes(self, started: SandboxBackend[Any]) -> None:
        """Each within the limit, together beyond it."""
        async with started.open(spec(limits=Limits(memory_mb=256))) as sandbox:
            result = await shell(sandbox, TWO_EATERS)
            assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"
        both = result.stdout.split() == [b"150000000", b"150000000"]
        assert both == (Behaviour.MEMORY in self.differs)

    async def test_the_number_of_processes(self, started: SandboxBackend[Any]) -> None:
        """Starting more fails; ending some makes room."""
        async with started.open(spec(limits=Limits(processes=24))) as sandbox:
            script = f"for i in $(seq 60); do sleep {marker()} & done; wait"
            await sandbox.exec(["sh", "-c", f"({script}) & sleep 1.5"])
            alive = await sandbox.processes()
            await sandbox.kill()
            assert await sandbox.processes() == 0
            assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"
        assert (alive > 24) == (Behaviour.PROCESSES in self.differs)
        assert alive > 8

    async def test_a_fork_bomb(self, started: SandboxBackend[Any]) -> None:
        """It hurts nobody else, and kill and close outrun it."""
        if Behaviour.PROCESSES in self.differs:  # it would hurt; the test above asserts that
            return
        async with started.open(spec(limits=Limits(processes=48))) as sandbox:
            await sandbox.exec(["sh", "-c", FORK_BOMB], timeout_s=1.0)
            async with started.open(spec()) as other:
                assert (await other.exec(["echo", "well"])).stdout == b"well\n"
            await sandbox.kill()
            assert await sandbox.processes() == 0
            await sandbox.exec(["sh", "-c", FORK_BOMB], timeout_s=0.5)
            closing_s = time.monotonic()
        assert time.monotonic() - closing_s < 10

    async def test_the_size_of_a_file(self, started: SandboxBackend[Any]) -> None:
        """Writing more fails, and the program can say so."""
        async with started.open(spec(limits=Limits(file_mb=1))) as sandbox:
            result = await shell(sandbox, "head -c 3000000 /dev/zero > f; wc -c < f")
        assert int(result.stdout) == 1 << 20

    async def test_a_large_write_is_an_error(self, started: SandboxBackend[Any]) -> None:
        """Nothing is lost in silence."""
        async with started.open(spec(limits=Limits(file_mb=1))) as sandbox:
            with pytest.raises(OSError, match=r".+"):
                await sandbox.write("f", bytes(3_000_000))
