import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from mixharness.builtin.bubblewrap import BubblewrapBackend, BubblewrapConfig
from mixharness.errors import SandboxError
from mixharness.sandbox import Sandbox, SandboxSpec
from mixharness.testing import SandboxContract
from mixharness.testing.contracts.sandbox import Behaviour
from mixharness.types import Limits, Task

pytestmark = pytest.mark.anyio

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")


def backend(**config: object) -> BubblewrapBackend:
    return BubblewrapBackend(BubblewrapConfig.model_validate(config))


def spec(**limits: int) -> SandboxSpec:
    return SandboxSpec(rollout_id="r", limits=Limits(**limits))


@needs_bwrap
class TestContract(SandboxContract):
    differs = frozenset({Behaviour.IMAGES, Behaviour.MEMORY})

    @pytest.fixture
    def component(self) -> BubblewrapBackend:
        return backend()


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with backend().open(spec()) as opened:
        yield opened


async def shell(sandbox: Sandbox, script: str) -> str:
    return (await sandbox.exec(["bash", "-c", script], timeout_s=30)).stdout.decode()


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def running(*argv: str) -> list[int]:
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process.pid
        for process in found
        if process.info["cmdline"] == list(argv) and process.info["status"] != "zombie"
    ]


async def test_without_bwrap_the_way_to_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="apt install bubblewrap"):
        await backend().start()


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo bubblewrap 0.4.1", r"bubblewrap 0\.4\.1; 0\.8 or newer"),
        ("exit 1", r"broken; 0\.8 or newer"),
        (
            '[ "$1" = --version ] && echo bubblewrap 0.11.0 && exit; '
            "echo No permissions to create new namespace >&2; exit 1",
            "user.max_user_namespaces.*No permissions to create",
        ),
    ],
)
async def test_a_bwrap_that_does_not_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    fake(tmp_path, monkeypatch, script)
    with pytest.raises(SandboxError, match=said):
        await backend().start()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("work", "absolute"),
        ("/a/../b", "absolute"),
        ("/usr/share/x", "system's own"),
        ("/", "system's own"),
        ("/home", "system's own"),
        ("/home/agent/x", "system's own"),
    ],
)
def test_a_workspace_path_that_is_taken_is_refused(path: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        backend().validate(Task(id="t", prompt="", verifier="v", workspace=path))


@needs_bwrap
async def test_an_empty_system_is_seen(sandbox: Sandbox) -> None:
    assert await shell(sandbox, "id -un; hostname; ls /home /tmp /run; ls -d /root /srv") == (
        "agent\nsandbox\n/home:\nagent\n\n/run:\n\n/tmp:\n"
    )
    assert await shell(
        sandbox, "cat /etc/shadow /etc/hostname; ls /sys; cut -d: -f1 /etc/passwd"
    ) == ("agent\n")


@needs_bwrap
async def test_nothing_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with backend().open(spec()) as sandbox:
        await sandbox.write("f", b"x")
        assert list(tmp_path.iterdir()) == []


@needs_bwrap
async def test_one_disk_limit_holds_for_all_that_can_be_written() -> None:
    async with backend().open(spec(disk_mb=16)) as sandbox:
        fill = "head -c 10000000 /dev/zero >"
        script = f"{fill} f && {fill} ~/f || echo home; rm ~/f; {fill} /tmp/f || echo tmp"
        assert await shell(sandbox, script) == "home\ntmp\n"


@needs_bwrap
async def test_a_task_larger_than_its_disk_is_said(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3_000_000))
    asked = SandboxSpec(rollout_id="r", limits=Limits(disk_mb=1), folders={"": tmp_path})
    with pytest.raises(SandboxError, match=r"/workspace: .*No space left"):
        async with backend().open(asked):
            pass


@needs_bwrap
async def test_further_folders_are_shown_read_only() -> None:
    with tempfile.TemporaryDirectory(prefix="mixharness-test-") as name:
        Path(name).chmod(0o777)
        Path(name, "tool").write_text("shared\n")
        Path(name, "tool").chmod(0o644)
        async with backend(folders=[name]).open(spec()) as sandbox:
            assert await shell(sandbox, f"cat {name}/tool; touch {name}/x || echo no") == (
                "shared\nno\n"
            )


@needs_bwrap
async def test_a_strict_umask_of_the_runner_closes_nothing() -> None:
    before = os.umask(0o077)
    try:
        asked = SandboxSpec(rollout_id="r", limits=Limits(), workspace="/root/deep/work")
        async with backend().open(asked) as sandbox:
            assert await shell(sandbox, "touch x; pwd; id -un") == "/root/deep/work\nagent\n"
    finally:
        os.umask(before)


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with all that came, once the other side has ended."""
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


@needs_bwrap
async def test_much_goes_to_the_proxy_and_back() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = (
        f"import socket; s = socket.create_connection(('127.0.0.1', {port}));"
        "s.sendall(b'abc' * 1000000); s.shutdown(1); f = s.makefile('rb');"
        "print(f.read() == b'ABC' * 1000000)"
    )
    opener = backend()
    await opener.admit(port)
    async with server, opener.open(spec()) as sandbox:
        await sandbox.kill()  # the way out is no process of the sandbox
        results = await asyncio.gather(*(sandbox.exec(["python3", "-c", client]) for _ in "ab"))
        assert [result.stdout for result in results] == [b"True\n"] * 2
        assert await sandbox.processes() == 0


@needs_bwrap
async def test_a_proxy_that_is_gone_ends_the_connection() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opener = backend()
    await opener.admit(port)
    async with opener.open(spec()) as sandbox:
        server.close()
        await server.wait_closed()
        assert await shell(sandbox, f"cat < /dev/tcp/127.0.0.1/{port}; echo over") == "over\n"


@needs_bwrap
async def test_closing_ends_open_connections() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opener = backend()
    await opener.admit(port)
    async with server:
        async with opener.open(spec()) as sandbox:
            script = f"exec 3<>/dev/tcp/127.0.0.1/{port}; (setsid sleep 4731 &); echo on"
            assert await shell(sandbox, script) == "on\n"
        assert running("sleep", "4731") == []
    await asyncio.wait_for(server.wait_closed(), 10)


@needs_bwrap
async def test_a_sandbox_whose_first_process_is_killed_is_gone(sandbox: Sandbox) -> None:
    await shell(sandbox, "(setsid sleep 4732 &)")
    (sleeper,) = running("sleep", "4732")
    first = psutil.Process(sleeper).parent()
    assert first is not None
    first.kill()
    assert wait_until(lambda: not running("sleep", "4732"))
    with pytest.raises(SandboxError):
        await sandbox.exec(["true"])


RUNNER = """
import asyncio, sys
from mixharness.builtin.bubblewrap import BubblewrapBackend, BubblewrapConfig
from mixharness.sandbox import SandboxSpec
from mixharness.types import Limits

async def main():
    spec = SandboxSpec(rollout_id="r", limits=Limits())
    async with BubblewrapBackend(BubblewrapConfig()).open(spec) as sandbox:
        await sandbox.exec(["sh", "-c", f"setsid sleep {sys.argv[1]} & sleep {sys.argv[1]}"])

asyncio.run(main())
"""


@needs_bwrap
def test_a_killed_runner_leaves_no_process() -> None:
    with subprocess.Popen([sys.executable, "-c", RUNNER, "4733"]) as runner:
        assert wait_until(lambda: len(running("sleep", "4733")) == 2)
        below = psutil.Process(runner.pid).children(recursive=True)
        runner.send_signal(signal.SIGKILL)
    assert len(below) >= 4  # bwrap, its process 1, and the two
    assert wait_until(lambda: not any(process.is_running() for process in below))
