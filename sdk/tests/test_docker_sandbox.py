import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mixharness.builtin.docker import DockerSandboxBackend, DockerSandboxConfig
from mixharness.builtin.docker.owner import LABEL, OWNER_LABEL, this_process
from mixharness.builtin.docker.sandbox import DockerSandbox
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec
from mixharness.testing import SandboxContract
from mixharness.types import Limits, Task

pytestmark = [pytest.mark.docker, pytest.mark.anyio]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can set firewall rules")


class TestContract(SandboxContract):
    @pytest.fixture
    def component(self) -> DockerSandboxBackend:
        return DockerSandboxBackend(DockerSandboxConfig())


@asynccontextmanager
async def started(**config: Any) -> AsyncIterator[DockerSandboxBackend]:
    backend = DockerSandboxBackend(DockerSandboxConfig(**config))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


@pytest.fixture
async def backend() -> AsyncIterator[DockerSandboxBackend]:
    async with started() as opened:
        yield opened


@pytest.fixture
async def sandbox(backend: DockerSandboxBackend) -> AsyncIterator[DockerSandbox]:
    async with backend.open(spec()) as opened:
        yield opened


def spec(files: dict[str, str] | None = None, **limits: int) -> SandboxSpec:
    return SandboxSpec(rollout_id="r", files=files or {}, limits=Limits(**limits))


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def ours(owner: str, *what: str) -> list[str]:
    """Return what carries a runner's label: containers, or networks."""
    filters = ("--filter", f"label={LABEL}=1", "--filter", f"label={OWNER_LABEL}={owner}")
    return docker(*(what or ("ps", "-a")), "-q", *filters).split()


def rules(owner: str) -> list[str]:
    done = subprocess.run(["iptables", "-S"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if f"mixharness:{owner}" in line]


async def say(sandbox: DockerSandbox, script: str) -> str:
    result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
    return (result.stdout + result.stderr).decode().strip()


async def test_a_program_has_no_rights(sandbox: DockerSandbox) -> None:
    status = await say(sandbox, "cat /proc/self/status")
    found = dict(line.split(":\t") for line in status.splitlines())
    assert {found[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert found["NoNewPrivs"] == "1"
    assert "0" not in found["Uid"].split()


async def test_each_sandbox_has_a_user_of_its_own(backend: DockerSandboxBackend) -> None:
    async with backend.open(spec()) as one, backend.open(spec()) as two:
        assert await say(one, "id -u") != await say(two, "id -u")


async def test_a_program_cannot_end_its_own_sandbox(sandbox: DockerSandbox) -> None:
    await say(sandbox, "for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; kill -9 1; kill -9 -1")
    assert await say(sandbox, "echo on") == "on"


async def test_only_three_places_can_be_written(sandbox: DockerSandbox) -> None:
    script = (
        "for p in / /etc /usr /var/tmp /run /workspace $HOME /tmp; do touch $p/x && echo $p; done"
    )
    result = await sandbox.exec(["sh", "-c", script])
    assert result.stdout.decode().split() == ["/workspace", sandbox.home, "/tmp"]


async def test_without_read_only_the_image_decides() -> None:
    async with started(read_only=False) as backend, backend.open(spec()) as sandbox:
        assert await say(sandbox, "touch /var/tmp/x && echo made; touch /etc/x || true") != ""
        assert (await sandbox.exec(["test", "-e", "/var/tmp/x"])).exit_code == 0


async def test_root_where_the_image_needs_it() -> None:
    async with started(root=True) as backend, backend.open(spec({"a": "b"})) as sandbox:
        assert await say(sandbox, "id -u; cat a; stat -c %u a") == "0\nb0"


@pytest.mark.parametrize("place", ["/workspace", "/home/sandbox", "/tmp"])
async def test_each_place_is_limited(backend: DockerSandboxBackend, place: str) -> None:
    async with backend.open(spec(disk_mb=8)) as sandbox:
        assert "No space left" in await say(sandbox, f"head -c 20000000 /dev/zero > {place}/big")
        assert int(await say(sandbox, f"stat -c %s {place}/big")) <= 8 << 20


async def test_full_disks_leave_memory_to_programs(backend: DockerSandboxBackend) -> None:
    async with backend.open(spec(disk_mb=512, memory_mb=96)) as sandbox:
        fill = "for p in . $HOME /tmp; do head -c 200000000 /dev/zero > $p/big; done; echo filled"
        assert "filled" in await say(sandbox, fill)
        assert await say(sandbox, "echo on") == "on"
        assert await sandbox.limit_hit() == ""


FORKS = """
import os, time
try:
    while os.fork():
        pass
finally:
    time.sleep(60)
"""


async def test_limits_that_were_hit_are_named(backend: DockerSandboxBackend) -> None:
    async with backend.open(spec(memory_mb=64)) as sandbox:
        assert await sandbox.limit_hit() == ""
        bomb = await sandbox.exec(["python3", "-c", "x = bytearray(200_000_000)"])
        assert bomb.exit_code == -signal.SIGKILL
        assert await sandbox.limit_hit() == "memory_mb"
    async with backend.open(spec(processes=16)) as sandbox:
        running = asyncio.create_task(sandbox.exec(["python3", "-c", FORKS]))
        while not await sandbox.limit_hit():
            await asyncio.sleep(0.05)
        refused = await sandbox.exec(["true"])
        await sandbox.kill()
        await running
        # The kernel counts what starts inside: docker's part may still start, the command not.
        assert refused.exit_code in (1, 126)
        assert b"fork failed" in refused.stderr or b"limit of processes" in refused.stderr
        assert await sandbox.limit_hit() == "processes"


async def test_sandboxes_cannot_reach_each_other(backend: DockerSandboxBackend) -> None:
    async with backend.open(spec()) as one, backend.open(spec()) as two:
        address = await say(one, "hostname -i")
        serve = f"import socket; socket.create_server(('{address}', 7777)).accept()"
        serving = asyncio.create_task(one.exec(["python3", "-c", serve]))
        connect = f"import socket; socket.create_connection(('{address}', 7777), 3)"
        own = await _until_reached(one, connect)
        other = await two.exec(["python3", "-c", connect])
        serving.cancel()
        await asyncio.wait({serving})
        assert own == 0
        assert other.exit_code == 1


async def _until_reached(sandbox: DockerSandbox, connect: str) -> int:
    for _ in range(40):
        code = (await sandbox.exec(["python3", "-c", connect])).exit_code
        if code == 0:
            break
    return code


async def test_a_container_killed_from_outside(
    backend: DockerSandboxBackend, tmp_path: Path
) -> None:
    async with backend.open(spec()) as sandbox:
        running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
        while not await sandbox.processes():
            await asyncio.sleep(0.02)
        docker("kill", *ours(this_process()))
        began = time.monotonic()
        with pytest.raises(SandboxError, match=r"container ended.*ExitCode 137"):
            await running
        for call in (
            sandbox.exec(["true"]),
            sandbox.read("f"),
            sandbox.write("f", b""),
            sandbox.snapshot(tmp_path / "snapshot"),
            sandbox.processes(),
            sandbox.kill(),
        ):
            with pytest.raises(SandboxError, match="container ended"):
                await call
        assert time.monotonic() - began < 8
        assert await sandbox.limit_hit() == ""
    assert ours(this_process()) == []


async def test_links_in_a_workspace_lead_nowhere(sandbox: DockerSandbox, tmp_path: Path) -> None:
    script = """
        ln -s /etc out; ln -s ../../etc/passwd passwd; mkfifo pipe; mkdir d; ln -s .. d/up
        echo one > one; ln one two; ln one d/three; chmod 000 d
    """
    assert await say(sandbox, script) == ""
    workspace = await sandbox.snapshot(tmp_path / "snapshot")
    assert workspace.list() == ["d/three", "one", "two"]
    assert workspace.read("d/three") == "one\n"


async def test_a_container_is_used_once(tmp_path: Path) -> None:
    async with started(pool=2) as backend:
        seen = []
        for _ in range(4):
            async with backend.open(spec({"in": "x"})) as sandbox:
                seen.append(await say(sandbox, "ls /workspace /tmp $HOME; id -u"))
                await say(sandbox, "touch left /tmp/left $HOME/left; setsid sleep 600 &")
            await backend.filled()
            assert len(ours(this_process())) == 2
        found = {text.rpartition("\n")[0] for text in seen}
        assert found == {"/home/sandbox:\n\n/tmp:\n\n/workspace:\nin"}
    assert ours(this_process()) == []


async def test_a_waiting_container_is_ready_at_once() -> None:
    async with started(pool=1) as backend:
        async with backend.open(spec({"a": "b"})):
            pass
        await backend.filled()
        (waiting,) = ours(this_process())
        async with backend.open(spec({"a": "c"})) as sandbox:
            assert waiting in ours(this_process())
            assert await sandbox.read("a") == b"c"
        assert waiting not in ours(this_process())


async def test_a_waiting_container_that_died_is_not_given() -> None:
    async with started(pool=1) as backend:
        async with backend.open(spec()):
            pass
        await backend.filled()
        docker("kill", *ours(this_process()))
        async with backend.open(spec()) as sandbox:
            assert await say(sandbox, "echo on") == "on"


RUNNER = """
import asyncio, sys
from mixharness.builtin.docker import DockerSandboxBackend, DockerSandboxConfig
from mixharness.builtin.docker.owner import this_process
from mixharness.sandbox import SandboxSpec
from mixharness.types import Limits

async def main():
    backend = DockerSandboxBackend(DockerSandboxConfig(pool=1))
    await backend.start()
    async with backend.open(SandboxSpec(rollout_id="r", limits=Limits())) as sandbox:
        await backend.filled()
        print(this_process(), flush=True)
        await sandbox.exec(["sleep", sys.argv[1]])

asyncio.run(main())
"""


@needs_root
async def test_what_a_killed_runner_leaves_is_reaped(backend: DockerSandboxBackend) -> None:
    seconds = f"7200.{os.getpid()}"
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, seconds], stdout=subprocess.PIPE)
    assert runner.stdout is not None
    with runner, runner.stdout:
        owner = (await asyncio.to_thread(runner.stdout.readline)).decode().strip()
        async with backend.open(spec()) as sandbox:
            assert await backend.reap() == 0
            assert len(ours(owner)) == 2
            runner.kill()
            runner.wait()
            # The containers end by themselves: nothing runs on until somebody reaps.
            while docker("ps", "-q", "--filter", f"label={OWNER_LABEL}={owner}"):
                await asyncio.sleep(0.05)
            assert await backend.reap() == 2
            assert (ours(owner), ours(owner, "network", "ls"), rules(owner)) == ([], [], [])
            assert await backend.reap() == 0
            assert await say(sandbox, "echo on") == "on"
            assert len(rules(this_process())) == 2


async def test_a_network_goes_though_something_hangs_on_it() -> None:
    async with started(firewall=False) as backend:
        (network,) = ours(this_process(), "network", "ls")
        stranger = docker("run", "-d", "--network", network, backend.config.image, "sleep", "600")
    try:
        assert ours(this_process(), "network", "ls") == []
    finally:
        docker("rm", "--force", stranger)


@needs_root
async def test_places_outside_by_list() -> None:
    serve = "python3 -m http.server -d /etc --bind 0.0.0.0"
    image = DockerSandboxConfig().image
    labels = ("--label", f"{LABEL}.test=1")
    ident = docker("run", "-d", "--rm", *labels, image, "sh", "-c", f"{serve} 8001 & {serve} 8002")
    try:
        form = "{{.NetworkSettings.IPAddress}}"
        address = docker("inspect", "--format", form, ident)
        outside = started(egress=(f"{address}:8001",))
        async with outside as backend, backend.open(spec()) as sandbox:
            get = "from urllib.request import urlopen as u; print(u('http://{}:{}/').status)"
            listed = ["python3", "-c", get.format(address, 8001)]
            while not (result := await sandbox.exec(listed, timeout_s=20)).stdout:
                await asyncio.sleep(0.1)
            assert result.stdout == b"200\n"
            for port in (8002, 8000):
                began = time.monotonic()
                other = await sandbox.exec(["python3", "-c", get.format(address, port)])
                assert b"refused" in other.stderr
                assert time.monotonic() - began < 4
    finally:
        docker("rm", "-f", ident)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"egress": ("example.org",)}, "host:port"),
        ({"egress": ("mixharness.invalid:443",)}, "cannot be found"),
        ({"egress": ("127.0.0.1:80",), "firewall": False}, "firewall"),
    ],
)
async def test_egress_that_cannot_be_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        async with started(**config):
            pass


async def test_without_iptables_the_run_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(SandboxError, match=r"iptables is not installed(.|\n)*firewall = false"):
            async with started():
                pass
    assert ours(this_process(), "network", "ls") == []


async def test_without_the_firewall_it_opens() -> None:
    with capture_logs() as logs:
        async with started(firewall=False) as backend, backend.open(spec()) as sandbox:
            assert await say(sandbox, "echo on") == "on"
    assert "docker_firewall_off" in [entry["event"] for entry in logs]


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:2375"])
async def test_without_an_engine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    backend = DockerSandboxBackend(DockerSandboxConfig())
    assert await backend.reap() == 0
    with pytest.raises(SandboxError, match=r"no Docker engine answers|DOCKER_HOST"):
        await backend.start()
    with pytest.raises(SandboxError, match="not started"):
        async with backend.open(spec()):
            pass


def test_an_image_that_is_not_there_is_said_before_the_run() -> None:
    backend = DockerSandboxBackend(DockerSandboxConfig())
    task = Task(id="t", prompt="", verifier="v", image="mixharness.invalid/no-such-image:1")
    with pytest.raises(ValueError, match=r"no-such-image:1.*docker pull"):
        backend.validate(task)
    backend.validate(Task(id="t", prompt="", verifier="v"))


@pytest.mark.parametrize("path", ["relative", "/", "/a/../b", "/home", "/tmp", "/proc/x", "/opt"])
def test_places_where_no_workspace_can_be(path: str) -> None:
    backend = DockerSandboxBackend(DockerSandboxConfig())
    with pytest.raises(ValueError, match="workspace"):
        backend.validate(Task(id="t", prompt="", verifier="v", workspace=path))


def test_many_sandboxes_fit_on_the_network() -> None:
    async def subnet() -> str:
        async with started():
            (ident,) = ours(this_process(), "network", "ls")
            return docker("network", "inspect", ident, "--format", "{{json .IPAM.Config}}")

    (pool,) = json.loads(asyncio.run(subnet()))
    assert pool["Subnet"].endswith("/20")
