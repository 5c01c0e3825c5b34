"""The keys of `[engine] name = "vllm"`. What they become on a command line is server.py's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mixharness_trainer.engines.model_folder import ModelFolderConfig

_OURS = (
    *("--model", "--host", "--port", "--uds", "--served-model-name", "--enable-scale-out"),
    *("--logprobs-mode", "--generation-config", "--override-generation-config"),
    *("--weight-transfer-config", "--load-format", "--api-key"),
)


class VllmConfig(ModelFolderConfig):
    """Keys of `[engine] name = "vllm"`."""

    urls: tuple[str, ...] = ()
    """Servers that run already, as `mixharness engine start` prints them (`http://host:port` or
    `unix:/path`). Empty: servers are launched, and end with the run."""
    replicas: int = Field(default=1, ge=1)
    """Servers to launch, each with the whole model; a rollout's calls all go to one of them."""
    devices: tuple[str, ...] = ()
    """`CUDA_VISIBLE_DEVICES` of each replica, e.g. `["1", "2,3"]`; empty leaves it as it is."""
    python: str = ""
    """Python of another environment that has vLLM and this package; empty for this one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and cache; `auto` is the trainer's: float32 on a CPU, bfloat16 on a GPU."""
    sync: Literal["file", "nccl", "ipc", "adapter"] = "file"
    """How new weights reach a server: from the saved file (any machine that sees it), by NCCL
    between GPUs, by CUDA IPC where trainer and server share a GPU, or as an adapter that it loads
    beside weights of its own; the last needs `lora_rank` in `[policy]`."""
    lora_rank: int = Field(default=0, ge=0)
    """Highest rank of adapters; left out, that of `[policy]`."""
    on_update: Literal["drain", "keep"] = "drain"
    """A weight update waits for what is being sampled, or pauses it and goes on with the new
    weights; then one call has tokens of both versions."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0.0, le=1.0)
    """Share of the GPU's memory that a server may take, cache included."""
    cache_mb: int = Field(default=0, ge=0)
    """Memory of each server for keys and values, in MiB; 0 takes what `gpu_memory_utilization`
    leaves, on a CPU 1024."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of a step, on a CPU."""
    seed: int = 0
    start_limit_s: float = Field(default=600.0, gt=0.0)
    """Time a server has to get ready."""
    flags: tuple[str, ...] = ()
    """More flags of the server, e.g. `["--tensor-parallel-size", "2"]`."""

    @model_validator(mode="after")
    def _consistent(self) -> VllmConfig:
        taken = sorted({flag.partition("=")[0] for flag in self.flags}.intersection(_OURS))
        if taken:
            raise ValueError(f"`flags` may not hold {', '.join(taken)}: the engine sets them")
        if self.urls and self.replicas != 1:
            raise ValueError("set `urls` to attach to servers, or `replicas` to launch them")
        if self.sync == "adapter" and self.on_update == "keep":
            raise ValueError('`sync = "adapter"` needs `on_update = "drain"`')
        if self.devices and len(self.devices) != self.replicas:
            raise ValueError(f"{self.replicas} replicas need {self.replicas} `devices`, or none")
        return self

    @property
    def num_servers(self) -> int:
        """Return the number of servers attached to, or launched."""
        return len(self.urls) or self.replicas
