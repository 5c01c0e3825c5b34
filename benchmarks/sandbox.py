"""What a docker sandbox costs beside the same container made by hand, in turn in one call.

By hand means by Docker's own command line, as a user would without this project: `docker run
--detach` with the same user, limits, file systems and closed network; files in with `docker exec
tar`, since `docker cp` does not reach file systems in memory; the command with `docker exec`; files
out the same way; `docker rm --force`. `ratio_vs_docker_run` is of the times from nothing until the
first command has run with its files in place. `plain_s` is `docker run --rm IMAGE true`: no files,
no limits, no network of its own. Needs root, a Docker engine with its command line, and the base
image.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import structlog

from mixharness.builtin.docker import DockerSandboxBackend, DockerSandboxConfig
from mixharness.builtin.docker.config import HOME, TMP, WORKSPACE
from mixharness.builtin.docker.image_name import DEFAULT_IMAGE
from mixharness.sandbox import SandboxSpec
from mixharness.types import Limits

MANY = 64
FILES = {f"folder/{number}.txt": "alpha\n" * 100 for number in range(20)}
COMMAND = ("cat", "folder/7.txt")
LIMITS = Limits()
USER = 54321
PARTS = ("open_s", "command_s", "out_s", "close_s", "first_s")
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Seconds of the parts of one container's life, by hand or ours."""

    open_s: float
    """Until commands can run and the files are in place."""
    command_s: float
    out_s: float
    """Until the workspace is on this machine."""
    close_s: float

    @property
    def first_s(self) -> float:
        """Return the time from nothing until a first command has run."""
        return self.open_s + self.command_s


class ByHand:
    """Containers made by the command line on one closed network."""

    def __init__(self, network: str) -> None:
        self._network, self._archive = network, archive()

    async def open(self) -> str:
        """Start a container and put the files in; return its name."""
        name = f"{self._network}-{next(_numbers)}"
        options = ["--detach", "--name", name, "--network", self._network, *like_ours()]
        await docker("run", *options, DEFAULT_IMAGE, "sleep", "infinity")
        put = ["--interactive", "--user", str(USER), name, "tar", "-xC", WORKSPACE]
        await docker("exec", *put, stdin=self._archive)
        return name

    async def life(self) -> Life:
        """Open, run a command, take the files out, remove."""
        clock = Clock()
        name = await self.open()
        open_s = clock.lap()
        user = ["--user", str(USER), "--workdir", WORKSPACE, name]
        await docker("exec", *user, *COMMAND)
        command_s = clock.lap()
        taken = io.BytesIO(await docker("exec", *user, "tar", "-cf", "-", "."))
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=taken) as tar:
                tar.extractall(folder, filter="data")
            out_s = clock.lap()
            await docker("rm", "--force", "--volumes", name)
            return Life(open_s=open_s, command_s=command_s, out_s=out_s, close_s=clock.lap())

    async def plain(self) -> float:
        """Return the seconds of the shortest command line that runs something."""
        clock = Clock()
        await docker("run", "--rm", DEFAULT_IMAGE, "true")
        return clock.lap()

    async def many(self) -> float:
        """Return the seconds until `MANY` are open, asked for at once."""
        clock = Clock()
        names = await asyncio.gather(*(self.open() for _ in range(MANY)))
        seconds = clock.lap()
        await docker("rm", "--force", "--volumes", *names)
        return seconds


class Clock:
    """Seconds since the last lap."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def lap(self) -> float:
        """Return them, and begin the next."""
        began, self._began = self._began, time.perf_counter()
        return self._began - began


async def docker(*arguments: str, stdin: bytes = b"") -> bytes:
    """Run Docker's command line; return what it prints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdin=pipe, stdout=pipe, stderr=pipe
    )
    printed, complaints = await process.communicate(stdin)
    if process.returncode:
        raise RuntimeError(f"docker {arguments[0]}: {complaints.decode().strip()}")
    return printed


def archive() -> bytes:
    """Return the task's files as an archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, text in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return file.getvalue()


def like_ours() -> list[str]:
    """Return options of `docker run` for what a sandbox of ours is held to."""
    megabytes, common = f"{LIMITS.memory_mb}m", f"rw,exec,nosuid,nodev,uid={USER},gid={USER}"
    sizes = {WORKSPACE: LIMITS.memory_mb // 2, HOME: LIMITS.memory_mb // 8}
    sizes[TMP] = sizes[HOME]
    places = [f"{path}:{common},size={min(LIMITS.disk_mb, mb)}m" for path, mb in sizes.items()]
    return [
        *("--init", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
        *("--log-driver=none", f"--memory={megabytes}", f"--memory-swap={megabytes}"),
        *(f"--cpus={LIMITS.cpus}", f"--pids-limit={LIMITS.processes}", "--ulimit=core=0"),
        *(f"--tmpfs={place}" for place in places),
    ]


@asynccontextmanager
async def by_hand() -> AsyncIterator[ByHand]:
    """Make a closed network, as each run of ours has one; it is removed at the end."""
    network = f"mixharness-by-hand-{time.time_ns()}"
    await docker("network", "create", "--internal", network)
    try:
        yield ByHand(network)
    finally:
        for name in (await docker("ps", "-aq", "--filter", f"network={network}")).split():
            await docker("rm", "--force", "--volumes", name.decode())
        await docker("network", "rm", network)


@asynccontextmanager
async def started(pool: int) -> AsyncIterator[DockerSandboxBackend]:
    """Start a backend; it is stopped at the end."""
    backend = DockerSandboxBackend(DockerSandboxConfig(pool=pool))
    try:
        await backend.start()
        yield backend
    finally:
        await backend.stop()


def spec() -> SandboxSpec:
    """Return what every sandbox here holds."""
    return SandboxSpec(rollout_id=f"bench-{next(_numbers)}", limits=LIMITS, files=FILES)


async def ours(backend: DockerSandboxBackend) -> Life:
    """Open a sandbox, run a command, take a snapshot, close it."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        async with backend.open(spec()) as sandbox:
            open_s = clock.lap()
            await sandbox.exec(COMMAND)
            command_s = clock.lap()
            await sandbox.snapshot(Path(folder, "workspace"))
            out_s = clock.lap()
        return Life(open_s=open_s, command_s=command_s, out_s=out_s, close_s=clock.lap())


async def warm(rounds: int) -> list[Life]:
    """Return lives where a container waits."""
    lives = []
    async with started(pool=1) as backend:
        for _ in range(rounds + 1):  # the first says which kind is wanted
            lives.append(await ours(backend))
            await backend.filled()
    return lives[1:]


async def many_ours() -> float:
    """Return the seconds until `MANY` are open, asked for at once."""
    async with started(pool=0) as backend, AsyncExitStack() as stack:
        clock = Clock()
        opening = [stack.enter_async_context(backend.open(spec())) for _ in range(MANY)]
        await asyncio.gather(*opening)
        return clock.lap()


async def measure(rounds: int) -> dict[str, Any]:
    """Return all figures, in seconds; medians over the rounds after a first one."""
    async with by_hand() as hand:
        async with started(pool=0) as backend:
            rows = [(await ours(backend), await hand.life()) for _ in range(rounds + 1)][1:]
        cold, bare = (middle([row[column] for row in rows]) for column in (0, 1))
        ready = middle(await warm(rounds))
        plain_s = median([await hand.plain() for _ in range(rounds)])
        return {
            "cold_open_s": cold["open_s"],
            "warm_open_s": ready["open_s"],
            "close_s": cold["close_s"],
            "open_64_s": await many_ours(),
            "ratio_vs_docker_run": cold["first_s"] / bare["first_s"],
            "ours": cold,
            "docker_run": {**bare, "open_64_s": await hand.many(), "plain_s": plain_s},
        }


def middle(lives: Sequence[Life]) -> dict[str, float]:
    """Return the medians of each part."""
    return {part: median(getattr(life, part) for life in lives) for part in PARTS}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    result = asyncio.run(measure(args.rounds))
    if args.json:
        print(json.dumps(result))
        return
    for name in ("ours", "docker_run"):
        result |= {f"{name} {key}": value for key, value in result.pop(name).items()}
    for key, value in result.items():
        print(f"{key:<22}{value:8.3f}")


if __name__ == "__main__":
    main()
