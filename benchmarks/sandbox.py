"""What opening a docker sandbox costs beside bare `docker run`, measured in turn in one call.

Needs root, a Docker engine with its command line, and the base image. A sandbox is open when its
files are in place and commands can run; a bare container when `docker run --detach` returns. The
ratio is of the times until a first command has run: opened and `true` executed, over
`docker run IMAGE true`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Any

import structlog

from mixharness.builtin.docker import DockerSandboxBackend, DockerSandboxConfig
from mixharness.builtin.docker.image_name import DEFAULT_IMAGE
from mixharness.sandbox import SandboxSpec
from mixharness.types import Limits

log = structlog.get_logger()

MANY = 64
_numbers = count()


class Bare:
    """Containers made by the command line, as anybody would."""

    def __init__(self) -> None:
        self._names: list[str] = []

    async def open(self) -> float:
        """Return the seconds that one took to start."""
        return await self._run(["--detach"], ["sleep", "infinity"])

    async def run(self) -> float:
        """Return the seconds until a command has run in a new one."""
        return await self._run([], ["true"])

    async def close(self) -> float:
        """Remove all; return the seconds it took."""
        names, self._names = self._names, []
        return await _timed("rm", "--force", "--volumes", *names) if names else 0.0

    async def _run(self, options: list[str], command: list[str]) -> float:
        name = f"mixharness-bare-{time.time_ns()}"
        self._names.append(name)
        return await _timed("run", *options, "--name", name, DEFAULT_IMAGE, *command)


async def _timed(*arguments: str) -> float:
    began = time.perf_counter()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("docker", *arguments, stdout=pipe, stderr=pipe)
    _, complaints = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"docker {arguments[0]}: {complaints.decode().strip()}")
    return time.perf_counter() - began


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
    return SandboxSpec(
        rollout_id=f"bench-{next(_numbers)}", limits=Limits(), files={"a.txt": "alpha\n"}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Seconds of one container's life, ours and bare."""

    open_s: float
    run_s: float
    """Until a first command has run, opening included."""
    close_s: float


async def ours(backend: DockerSandboxBackend) -> Round:
    """Open a sandbox, run a command, close it."""
    began = time.perf_counter()
    async with backend.open(spec()) as sandbox:
        opened = time.perf_counter()
        await sandbox.exec(["true"])
        ran = time.perf_counter()
    return Round(open_s=opened - began, run_s=ran - began, close_s=time.perf_counter() - ran)


async def bare() -> Round:
    """Do the same with the command line."""
    containers = Bare()
    open_s = await containers.open()
    close_s = await containers.close()
    run_s = await containers.run()
    await containers.close()
    return Round(open_s=open_s, run_s=run_s, close_s=close_s)


async def one_by_one(rounds: int) -> tuple[list[Round], list[Round]]:
    """Return rounds of ours and of bare containers, in turn; the first pair is a warm-up."""
    async with started(pool=0) as backend:
        pairs = [(await ours(backend), await bare()) for _ in range(rounds + 1)]
    return [pair[0] for pair in pairs[1:]], [pair[1] for pair in pairs[1:]]


async def warm(rounds: int) -> list[float]:
    """Return the seconds of opening where a container waits."""
    opens = []
    async with started(pool=1) as backend:
        for _ in range(rounds + 1):  # the first says which kind is wanted
            opens.append((await ours(backend)).open_s)
            await backend.filled()
    return opens[1:]


async def many_ours() -> float:
    """Return the seconds until all of `MANY` are open, asked for at once."""
    async with started(pool=0) as backend, AsyncExitStack() as stack:
        began = time.perf_counter()
        opening = [stack.enter_async_context(backend.open(spec())) for _ in range(MANY)]
        await asyncio.gather(*opening)
        return time.perf_counter() - began


async def many_bare() -> float:
    """Return the same of bare containers."""
    containers = Bare()
    began = time.perf_counter()
    try:
        await asyncio.gather(*(containers.open() for _ in range(MANY)))
        return time.perf_counter() - began
    finally:
        await containers.close()


async def measure(rounds: int) -> dict[str, Any]:
    """Return all figures, in seconds; medians over the rounds."""
    cold, plain = await one_by_one(rounds)
    for name, found in (("ours", cold), ("bare", plain)):
        log.info(
            name, opens=_short([r.open_s for r in found]), runs=_short([r.run_s for r in found])
        )
    warm_opens = await warm(rounds)
    log.info("warm", opens=_short(warm_opens))
    return {
        "cold_open_s": median(r.open_s for r in cold),
        "warm_open_s": median(warm_opens),
        "close_s": median(r.close_s for r in cold),
        "open_64_s": await many_ours(),
        "ratio_vs_docker_run": median(r.run_s for r in cold) / median(r.run_s for r in plain),
        "docker_run": {
            "run_s": median(r.run_s for r in plain),
            "open_s": median(r.open_s for r in plain),
            "close_s": median(r.close_s for r in plain),
            "open_64_s": await many_bare(),
        },
    }


def _short(seconds: Sequence[float]) -> str:
    return " ".join(f"{each:.3f}" for each in seconds)


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
    bare = result.pop("docker_run")
    for key, value in result.items():
        print(f"{key:<22}{value:8.3f}")
    for key, value in bare.items():
        print(f"{'docker run ' + key:<22}{value:8.3f}")


if __name__ == "__main__":
    main()
