"""LiteLLM's proxy beside ours: installed in an environment of its own, started, asked, stopped.

What is compared with it is proxy_overhead.py's business.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from mixharness.rollout.cache import cache_dir

VERSION = "1.110"
START_LIMIT_S = 180.0
CALLS, WARM_UP = 40, 5
# Its extra for the server names packages of its own that an index may not have, and that take no
# part in relaying a request; what is left of the extra is what the server imports.
_REQUIREMENTS = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for requirement in map(Requirement, requires("litellm")):
    marker, requirement.marker = requirement.marker, None
    if marker and "extra" in str(marker) and marker.evaluate({"extra": "proxy"}):
        if not requirement.name.startswith("litellm"):
            print(requirement)
"""


class NotInstalled(RuntimeError):
    """It cannot be installed or started here; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The model behind it."""

    base_url: str
    """Ends in `/v1`."""
    key: str


@dataclass(frozen=True, slots=True)
class LiteLLM:
    """A running proxy."""

    url: str
    key: str
    process: psutil.Process

    async def cpu_ms(self, body: bytes) -> float:
        """Return its CPU time for one call, the mean over `CALLS` of them."""
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as client:
            for number in range(WARM_UP + CALLS):
                if number == WARM_UP:
                    before_s = self._cpu_s()
                response = await client.post(f"{self.url}/v1/chat/completions", content=body)
                response.raise_for_status()
        return (self._cpu_s() - before_s) / CALLS * 1e3

    def _cpu_s(self) -> float:
        every = [self.process, *self.process.children(recursive=True)]
        times = [one.cpu_times() for one in every]
        return float(sum(each.user + each.system for each in times))


def install() -> Path:
    """Return the folder of an environment that holds it, made at the first call.

    Raises:
        NotInstalled: pip's last words.
    """
    folder = cache_dir() / "benchmarks" / f"litellm-{VERSION}"
    if not (folder / "complete").exists():
        pip = [sys.executable, "-m", "pip", "-q", "--python", str(folder / "bin/python"), "install"]
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        _run([*pip, f"litellm=={VERSION}.*"])
        _run([*pip, *_run([str(folder / "bin/python"), "-c", _REQUIREMENTS]).split("\n")])
        (folder / "complete").touch()
    return folder


@asynccontextmanager
async def running(folder: Path, upstream: Upstream, work: Path) -> AsyncIterator[LiteLLM]:
    """Start it in front of `upstream`, logging into `work`; it is stopped at the end.

    Raises:
        NotInstalled: it does not start.
    """
    key = f"sk-{secrets.token_hex(16)}"
    config = work / "litellm.yaml"
    parameters = {"model": "openai/policy", "api_base": upstream.base_url, "api_key": upstream.key}
    models = [{"model_name": "policy", "litellm_params": parameters}]
    config.write_text(json.dumps({"model_list": models}))  # JSON is YAML
    port = _free_port()
    command = [str(folder / "bin/litellm"), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    settings = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (work / "litellm.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT, cwd=work
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await _wait_for(f"{url}/health/liveliness", process, work / "litellm.log")
        yield LiteLLM(url, key, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait()


async def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async with asyncio.timeout(START_LIMIT_S), httpx.AsyncClient(trust_env=False) as client:
        while process.poll() is None:
            try:
                if (await client.get(url)).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.5)
    raise NotInstalled(f"it ended at its start: {log.read_text(errors='replace')[-500:]}")


def _run(command: Sequence[str]) -> str:
    done = subprocess.run([part for part in command if part], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
