import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.local.sandbox import LocalSandbox, in_thread
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec
from mixharness.testing import SandboxContract
from mixharness.testing.contracts.sandbox import Behaviour
from mixharness.types import Limits

pytestmark = pytest.mark.anyio

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")


@pytest.fixture(autouse=True)
def temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Sandboxes of a test live in a folder of its own, which the sandbox's user can enter."""
    # Not tmp_path: pytest closes that to other users. Its base is chosen before the patch below.
    tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="mixharness-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield folder


def backend(**config: int) -> LocalSandboxBackend:
    return LocalSandboxBackend(LocalSandboxConfig(**config))


def spec(files: dict[str, str] | None = None, **limits: int) -> SandboxSpec:
    return SandboxSpec(rollout_id="r", files=files or {}, limits=Limits(**limits))


AS_ROOT = frozenset(
    {
        Behaviour.IMAGES,
        Behaviour.WORKSPACE_PATH,
        Behaviour.HOST_FILES,
        Behaviour.HOST_PROCESSES,
        Behaviour.PROGRAM,
        Behaviour.TMP,
        Behaviour.OUTSIDE,
        Behaviour.HOST_SERVICES,
        Behaviour.NO_NETWORK,
        Behaviour.MEMORY,
        Behaviour.DISK,
    }
)
AS_ANOTHER = AS_ROOT | {Behaviour.PRIVATE, Behaviour.PROCESSES}
"""As any other user, all sandboxes are that user's."""


class TestContract(SandboxContract):
    differs = AS_ROOT if os.geteuid() == 0 else AS_ANOTHER

    @pytest.fixture
    def component(self) -> LocalSandboxBackend:
        return backend()


@pytest.fixture
async def sandbox() -> AsyncIterator[LocalSandbox]:
    async with backend().open(spec({"notes/a.txt": "eins zwölf\n"})) as opened:
        yield opened


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def sleepers(seconds: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["cmdline"] == ["sleep", seconds] and process.info["status"] != "zombie":
            found.append(process.pid)
    return found


async def test_only_the_given_environment_is_seen(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_SECRET", "x")
    result = await sandbox.exec(["env"], env={"GIVEN": "ü"})
    names = {line.split("=")[0] for line in result.stdout.decode().splitlines()}
    assert names == {"GIVEN", "PATH", "HOME", "TMPDIR", "LANG", "MIXHARNESS_SANDBOX"}


async def test_stdin_is_closed_and_a_missing_command_is_said(sandbox: LocalSandbox) -> None:
    assert (await sandbox.exec(["cat"], timeout_s=5)).stdout == b""
    missing = await sandbox.exec(["no-such-command"])
    assert missing.exit_code == 127
    assert b"not found" in missing.stderr


async def test_two_sandboxes_see_nothing_of_each_other(sandbox: LocalSandbox) -> None:
    async with backend().open(spec({"own": "2"})) as other:
        peek = await other.exec(["cat", f"{sandbox.workspace}/notes/a.txt"])
        assert (await sandbox.exec(["ls"])).stdout == b"notes\n"
        assert (await other.exec(["ls"])).stdout == b"own\n"
        if os.geteuid() == 0:
            assert peek.exit_code == 1
            users = {(await each.exec(["id", "-u"])).stdout for each in (sandbox, other)}
            assert len(users) == 2
            assert b"0\n" not in users


@needs_root
async def test_a_link_opens_nothing_that_only_the_runner_may_read(
    sandbox: LocalSandbox, temporary: Path
) -> None:
    secret = temporary / "answer"
    secret.write_text("42")
    secret.chmod(0o600)
    await sandbox.exec(["ln", "-s", str(secret), "innocent"])
    with pytest.raises(OSError, match="denied"):
        await sandbox.read("innocent")


async def test_limits_hold() -> None:
    async with backend().open(spec(memory_mb=256, file_mb=1, processes=8)) as sandbox:
        memory = await sandbox.exec(["sh", "-c", "head -c 400000000 /dev/zero | tail -c 300000000"])
        big = await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > f; wc -c < f"])
        assert b"exhausted" in memory.stderr
        assert big.stdout.strip() == b"1048576"
        if os.geteuid() == 0:
            forks = "for i in $(seq 20); do sleep 4715 & done; true"
            assert b"fork" in (await sandbox.exec(["sh", "-c", forks])).stderr


async def test_nothing_is_left_after_a_raise_inside(temporary: Path) -> None:
    async def use() -> None:
        async with backend().open(spec()) as sandbox:
            await sandbox.exec(["sh", "-c", "chmod 000 . ; sleep 4716 &"])
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await use()
    assert sleepers("4716") == []
    assert list(temporary.iterdir()) == []


async def test_nothing_is_left_after_a_cancel(temporary: Path) -> None:
    async def use() -> None:
        async with backend().open(spec()) as sandbox:
            await sandbox.exec(["sleep", "4717"])

    task = asyncio.create_task(use())
    while not sleepers("4717"):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sleepers("4717") == []
    assert list(temporary.iterdir()) == []


async def test_a_cancel_waits_for_what_works_on_the_files() -> None:
    loop, begun, finished = asyncio.get_running_loop(), asyncio.Event(), []

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.2)
        finished.append(True)

    task = asyncio.create_task(in_thread(work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished == [True]


async def test_a_file_outside_the_workspace_is_refused(temporary: Path) -> None:
    with pytest.raises(SandboxError, match=r"'\.\./x' must be a relative path"):
        async with backend().open(spec({"../x": ""})):
            pass
    assert list(temporary.iterdir()) == []


async def test_closing_twice_is_fine_and_a_closed_sandbox_says_so() -> None:
    async with backend().open(spec()) as sandbox:
        sandbox.close()
        sandbox.close()
        with pytest.raises(SandboxError, match="cannot run"):
            await sandbox.exec(["true"])


@needs_root
async def test_a_program_nobody_can_reach_is_refused_with_the_way_out() -> None:
    closed = Path(tempfile.mkdtemp())
    asked = SandboxSpec(rollout_id="r", files={}, limits=Limits(), program_path=closed / "p")
    (closed / "p").mkdir()
    with pytest.raises(SandboxError, match="MIXHARNESS_CACHE"):
        async with backend().open(asked):
            pass


RUNNER = """
import asyncio, json, sys, tempfile
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.sandbox import SandboxSpec
from mixharness.types import Limits

tempfile.tempdir = sys.argv[1]

async def main():
    spec = SandboxSpec(rollout_id="r", files={}, limits=Limits())
    async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as sandbox:
        await sandbox.exec(["sh", "-c", f"setsid sleep {sys.argv[2]} & true"])
        owner = json.load(open(sandbox.workspace + "/../owner.json"))
        print(json.dumps(owner["init"][0]), flush=True)
        await sandbox.exec(["sleep", sys.argv[2]])

asyncio.run(main())
"""


def start_runner(folder: Path, seconds: str) -> tuple[subprocess.Popen[str], int]:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(folder), seconds], stdout=subprocess.PIPE, text=True
    )
    assert runner.stdout is not None
    init_pid = json.loads(runner.stdout.readline())
    assert wait_until(lambda: len(sleepers(seconds)) == 2)
    return runner, init_pid


def test_a_killed_runner_leaves_no_process_and_no_folder(temporary: Path) -> None:
    runner, init_pid = start_runner(temporary, "4718")
    with runner:
        runner.kill()
    assert wait_until(lambda: not psutil.pid_exists(init_pid) and not sleepers("4718"))
    assert list(temporary.iterdir()) == []


async def test_reap_cleans_up_when_runner_and_init_were_both_killed(temporary: Path) -> None:
    runner, init_pid = start_runner(temporary, "4719")
    with runner:
        os.kill(runner.pid, signal.SIGSTOP)  # so that it cannot clean up in between
        os.kill(init_pid, signal.SIGKILL)
        runner.kill()
    assert len(list(temporary.iterdir())) == 1
    async with backend().open(spec()) as alive:
        assert await backend().reap() == 1
        assert (await alive.exec(["true"])).exit_code == 0
    assert wait_until(lambda: not sleepers("4719"))
    assert list(temporary.iterdir()) == []
