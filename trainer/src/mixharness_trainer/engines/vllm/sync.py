"""What new weights are, whether they fit, and how they reach a server: by a file that it reads.

The routes are those of vLLM's own weight-transfer API. Transfers between GPUs are gpu_sync.py's.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safetensors import safe_open

from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm.client import VllmClient

_MAYBE_TIED = {"lm_head.weight"}
"""Some save it beside the embedding that it is tied to, others do not."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A folder of weights and their number."""

    folder: Path
    version: int

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the safetensors files."""
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))


class Sender(Protocol):
    """Moves weights to one server that is paused."""

    async def send(self, folder: Path) -> None:
        """Move all tensors of the folder, from `start_weight_update` to `finish_weight_update`."""

    async def close(self) -> None:
        """Give up the connection."""


async def connect(client: VllmClient, sync: str) -> Sender:
    """Make ready to send to a server by `file`, `nccl` or `ipc`.

    Raises:
        EngineError: the server does not take part, or there is no GPU to send from.
    """
    if sync == "file":
        await client.post("/init_weight_transfer_engine", {"init_info": {}})
        return FileSender(client)
    from mixharness_trainer.engines.vllm.gpu_sync import GpuSender

    return await asyncio.to_thread(GpuSender, client.url, sync)


class FileSender:
    """Names the folder to the server, which must see it under the same path."""

    def __init__(self, client: VllmClient) -> None:
        self._client = client

    async def send(self, folder: Path) -> None:
        """Let the server load the folder."""
        await self._client.post("/start_weight_update")
        await self._client.post("/update_weights", {"update_info": {"folder": str(folder)}})
        await self._client.post("/finish_weight_update")

    async def close(self) -> None:
        """Do nothing."""


def check_fit(source: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Compare a folder with what the servers run, before one of them takes half of it.

    Raises:
        EngineError: names or shapes are others.
    """
    found = tensor_shapes(source)
    problems = [f"{name} is missing" for name in shapes.keys() - found.keys() - _MAYBE_TIED]
    problems += [
        f"{name} is not in the model" for name in found.keys() - shapes.keys() - _MAYBE_TIED
    ]
    problems += [
        f"{name} has shape {found[name]}, the model's has {shape}"
        for name, shape in shapes.items()
        if name in found and found[name] != shape
    ]
    if problems:
        raise EngineError(f"weights in {source} do not fit: " + "; ".join(sorted(problems)[:5]))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a folder of safetensors files, by name.

    Raises:
        EngineError: there are none.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  a safetensors file is no mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
    if not shapes:
        raise EngineError(f"{folder} has no *.safetensors")
    return shapes
