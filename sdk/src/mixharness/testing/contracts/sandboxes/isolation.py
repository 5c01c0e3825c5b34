"""The contract of what a sandbox can see and reach: users, processes, host, program, network."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mixharness.errors import SandboxError
from mixharness.sandbox import Sandbox, SandboxBackend
from mixharness.testing.contracts.sandboxes.base import (
    Behaviour,
    SandboxFixtures,
    marker,
    shell,
    spec,
)
from mixharness.types import Task

NOWHERE = "192.0.2.1"
"""An address that RFC 5737 keeps free."""


@asynccontextmanager
async def listening(host: str) -> AsyncIterator[int]:
    """Serve `hello` to whoever connects; yield the port."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, host, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


async def reaches(sandbox: Sandbox, host: str, port: int) -> bool:
    """Say whether a program in the sandbox gets the greeting of `listening`."""
    script = f"exec 3<>/dev/tcp/{host}/{port} && head -n 1 <&3"
    return (await sandbox.exec(["bash", "-c", script], timeout_s=10)).stdout == b"hello\n"


@asynccontextmanager
async def open_folder() -> AsyncIterator[Path]:
    """Yield a host folder that all users may enter and read."""
    with tempfile.TemporaryDirectory(prefix="mixharness-contract-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


class IsolationBehaviours(SandboxFixtures):
    """What programs in a sandbox cannot do."""

    async def test_programs_have_no_rights(self, opened: Sandbox) -> None:
        """No root, no capabilities, no way to either; the system is not theirs to change."""
        status = (await shell(opened, "cat /proc/self/status")).stdout.decode()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert fields["Uid"].split()[0] != "0"
        assert int(fields["CapEff"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        assert (await shell(opened, "touch /usr/bin/x || rm /bin/sh")).exit_code != 0

    async def test_no_descriptor_of_the_runner_is_open(self, opened: Sandbox) -> None:
        """Standard streams, and the folder that `ls` itself reads."""
        seen = (await opened.exec(["ls", "/proc/self/fd"])).stdout.split()
        assert seen == [b"0", b"1", b"2", b"3"]

    async def test_two_are_apart(self, started: SandboxBackend[Any]) -> None:
        """One cannot see the other's files or end its processes."""
        async with started.open(spec()) as one, started.open(spec()) as two:
            await one.write("mine.txt", b"secret")
            with pytest.raises(FileNotFoundError):
                await two.read("mine.txt")
            if one.workspace != two.workspace:
                peek = await two.exec(["cat", f"{one.workspace}/mine.txt"])
                assert (peek.stdout == b"secret") == (Behaviour.PRIVATE in self.differs)
            await shell(one, f"(setsid sleep {marker()} &)")
            if Behaviour.PRIVATE not in self.differs:
                await shell(two, "kill -9 -1 2>/dev/null || true")
            await two.kill()
            assert (await one.processes(), await two.processes()) == (1, 0)

    async def test_tmp(self, started: SandboxBackend[Any]) -> None:
        """Both `/tmp` and `TMPDIR` can be written."""
        name = f"/tmp/mixharness-{marker()}"
        async with started.open(spec()) as one, started.open(spec()) as two:
            script = f"echo x > {name}; mktemp >/dev/null && ls {name}"
            assert (await shell(one, script)).stdout.decode() == f"{name}\n"
            seen = (await shell(two, f"[ -e {name} ]")).exit_code == 0
            assert seen == (Behaviour.TMP in self.differs)
            await shell(one, f"rm {name}")

    async def test_processes_of_the_host(self, opened: Sandbox) -> None:
        """A command line may hold a secret."""
        seconds = marker()
        with subprocess.Popen(["sleep", seconds]) as process:
            try:
                seen = (await shell(opened, "cat /proc/[0-9]*/cmdline || true")).stdout
            finally:
                process.kill()
        assert (seconds.encode() in seen) == (Behaviour.HOST_PROCESSES in self.differs)

    async def test_files_of_the_host(self, opened: Sandbox) -> None:
        """Not even those that everybody on the host may read."""
        async with open_folder() as folder:
            (folder / "f").write_text("on the host")
            seen = (await shell(opened, f"cat {folder}/f || true")).stdout == b"on the host"
        assert seen == (Behaviour.HOST_FILES in self.differs)

    async def test_the_program_is_mounted(self, started: SandboxBackend[Any]) -> None:
        """It runs, and one rollout cannot change it for the next."""
        async with open_folder() as folder:
            folder.chmod(0o777)
            (folder / "run").write_text("#!/bin/sh\necho from the program\n")
            (folder / "run").chmod(0o755)
            async with started.open(spec(program_path=folder)) as sandbox:
                result = await sandbox.exec([f"{sandbox.program_path}/run"])
                assert result.stdout == b"from the program\n"
                result = await shell(sandbox, f"echo x > {sandbox.program_path}/new")
            written = (folder / "new").exists()
        assert written == (result.exit_code == 0) == (Behaviour.PROGRAM in self.differs)

    async def test_without_a_program_there_is_no_path(self, opened: Sandbox) -> None:
        """An empty one."""
        assert opened.program_path == ""

    @pytest.mark.parametrize("path", ["/data/job one", "/tmp/task/workspace"])
    async def test_a_task_may_choose_its_workspace_path(
        self, started: SandboxBackend[Any], path: str
    ) -> None:
        """Prompts and graders name absolute paths."""
        task = Task(id="t", prompt="", verifier="v", workspace=path)
        if Behaviour.WORKSPACE_PATH in self.differs:
            with pytest.raises(ValueError, match="docker"):
                started.validate(task)
            return
        started.validate(task)
        async with started.open(spec(workspace=path, files={"a/f": "x"})) as sandbox:
            result = await shell(sandbox, "pwd; cat a/f; echo > a/g")
            assert (result.exit_code, result.stdout.decode()) == (0, f"{path}\nx")
            assert sandbox.workspace == path
            assert await sandbox.read("a/f") == b"x"

    async def test_a_missing_image_is_said(self, started: SandboxBackend[Any]) -> None:
        """With its name, and before or when the sandbox opens."""
        image = "mixharness.invalid/no-such-image:1"
        if Behaviour.IMAGES in self.differs:
            with pytest.raises(ValueError, match="docker"):
                started.validate(Task(id="t", prompt="", verifier="v", image=image))
            return
        with pytest.raises(SandboxError, match="no-such-image"):
            async with started.open(spec(image=image)):
                pass

    async def test_the_proxy_is_reached(self, started: SandboxBackend[Any]) -> None:
        """At the address that the backend names, on the admitted port."""
        async with listening(started.proxy_host) as port:
            await started.admit(port)
            async with started.open(spec()) as sandbox:
                assert await reaches(sandbox, started.proxy_host, port)

    async def test_two_reach_the_proxy_at_once(self, started: SandboxBackend[Any]) -> None:
        """Many times each."""
        async with listening(started.proxy_host) as port:
            await started.admit(port)
            async with started.open(spec()) as one, started.open(spec()) as two:
                boxes = [one, two] * 8
                found = await asyncio.gather(
                    *(reaches(box, started.proxy_host, port) for box in boxes)
                )
        assert all(found)

    async def test_other_services_of_the_host(self, started: SandboxBackend[Any]) -> None:
        """Only the admitted port, at no address of the host."""
        async with listening("0.0.0.0") as port, listening(started.proxy_host) as admitted:
            await started.admit(admitted)
            async with started.open(spec()) as sandbox:
                seen = [
                    await reaches(sandbox, host, port)
                    for host in sorted({"127.0.0.1", started.proxy_host})
                ]
        assert any(seen) == (Behaviour.HOST_SERVICES in self.differs)

    async def test_addresses_outside(self, opened: Sandbox) -> None:
        """They fail at once: a program that waits for them would lose its time."""
        if Behaviour.OUTSIDE in self.differs:
            inside = (await opened.exec(["readlink", "/proc/self/ns/net"])).stdout.decode()
            assert inside.strip() == str(Path("/proc/self/ns/net").readlink())
            return
        started_s = time.monotonic()
        assert not await reaches(opened, NOWHERE, 443)
        names = await opened.exec(["getent", "hosts", "mixharness.invalid"], timeout_s=10)
        assert names.exit_code != 0
        assert time.monotonic() - started_s < 8

    async def test_a_grader_reaches_nothing(self, started: SandboxBackend[Any]) -> None:
        """`network=False`."""
        async with listening(started.proxy_host) as port:
            await started.admit(port)
            async with started.open(spec(network=False)) as sandbox:
                seen = await reaches(sandbox, started.proxy_host, port)
        assert seen == (Behaviour.NO_NETWORK in self.differs)

    async def test_own_services(self, opened: Sandbox) -> None:
        """A task's services are reached inside the sandbox at 127.0.0.1."""
        serve = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); "
            "print(s.getsockname()[1], flush=True); s.accept()[0].sendall(b'hello\\n')"
        )
        ports: list[bytes] = []
        task = asyncio.create_task(opened.exec(["python3", "-c", serve], on_stdout=ports.append))
        while not ports and not task.done():
            await asyncio.sleep(0.02)
        assert ports, task.result()
        assert await reaches(opened, "127.0.0.1", int(ports[0]))
        await task

    async def test_the_clock_is_the_hosts(self, opened: Sandbox) -> None:
        """In UTC or the host's zone, but the same instant."""
        inside = int((await opened.exec(["date", "+%s"])).stdout)
        assert abs(inside - time.time()) < 5
