import asyncio
from collections.abc import AsyncIterator

import pytest

from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.errors import SandboxError
from mixharness.rollout.services import services
from mixharness.sandbox import Sandbox, SandboxSpec
from mixharness.types import Limits, Service

pytestmark = pytest.mark.anyio

SERVER = 'trap "" PIPE; mkfifo "$PIPE"; while true; do echo pong > "$PIPE"; done'


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    backend = LocalSandboxBackend(LocalSandboxConfig())
    spec = SandboxSpec(rollout_id="r", limits=Limits())
    async with backend.open(spec) as opened:
        yield opened


def service(*command: str, health: tuple[str, ...] = ("true",), start_s: float = 20.0) -> Service:
    return Service(name="db", command=command, health=health, start_s=start_s)


async def nothing_runs(sandbox: Sandbox) -> None:
    async with asyncio.timeout(10):
        while await sandbox.processes():
            await asyncio.sleep(0.01)


async def test_a_service_is_healthy_inside_and_gone_after(sandbox: Sandbox) -> None:
    env = {"PIPE": "pipe"}  # its folder is the workspace
    health = ("test", "-p", f"{sandbox.workspace}/pipe")
    wanted = Service(name="db", command=("sh", "-c", SERVER), health=health, env=env)
    async with services(sandbox, [wanted]):
        answer = await sandbox.exec(["head", "-n", "1", "pipe"])
        assert answer.stdout == b"pong\n"
        assert await sandbox.processes() == 1
    await nothing_runs(sandbox)


async def test_services_start_together_and_are_waited_for(sandbox: Sandbox) -> None:
    """The first is healthy only when the second has done something."""
    first = service("sleep", "100", health=("test", "-e", "ready"))
    second = service("sh", "-c", "sleep 0.3; touch ready; sleep 100")
    async with services(sandbox, [first, second]):
        assert await sandbox.read("ready") == b""


async def test_one_that_ends_says_what_it_printed(sandbox: Sandbox) -> None:
    dies = service("sh", "-c", "echo no port >&2; exit 3", health=("false",))
    with pytest.raises(SandboxError, match=r"service 'db' ended with code 3: no port"):
        async with services(sandbox, [dies]):
            raise AssertionError("must not be entered")


async def test_one_that_is_never_healthy_is_given_up_and_killed(sandbox: Sandbox) -> None:
    hangs = service("sleep", "100", health=("sleep", "50"), start_s=0.5)
    with pytest.raises(SandboxError, match=r"not healthy after 0\.5 s"):
        async with services(sandbox, [service("sleep", "100"), hangs]):
            raise AssertionError("must not be entered")
    await nothing_runs(sandbox)


async def test_it_ends_when_everything_in_the_sandbox_is_killed(sandbox: Sandbox) -> None:
    async with services(sandbox, [service("sleep", "100")]):
        await sandbox.kill()  # as settling does
        assert await sandbox.processes() == 0
