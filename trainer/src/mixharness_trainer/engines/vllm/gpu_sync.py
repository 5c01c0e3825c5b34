"""Weights from trainer to vLLM between GPUs, by vLLM's own trainer side: NCCL or CUDA IPC.

Imported only for `sync = "nccl"` or `"ipc"`: it needs vLLM and a GPU in the trainer's process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import (
    HTTPVLLMWeightSyncClient,
    ParamMeta,
    WeightSource,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import TrainerInitInfo
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm.client import address_of

_UPDATE_S = 600.0
_one_at_a_time = threading.Lock()
"""Communicators of one device must not be used side by side."""


class FolderSource(WeightSource):
    """The tensors of a folder of safetensors files, in the order of their names."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self._device = folder, device

    def metadata(self) -> list[ParamMeta]:
        """Return name, dtype and shape of each tensor."""
        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self._tensors("meta")]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor on the device."""
        return self._tensors(self._device)

    def _tensors(self, device: str) -> Iterator[tuple[str, torch.Tensor]]:
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for name in sorted(file.keys()):
                    yield name, file.get_tensor(name).to(device)


class _SocketClient(HTTPVLLMWeightSyncClient):
    """vLLM's own client, which pickles CUDA handles as its server reads them, on a socket too."""

    def __init__(self, url: str) -> None:
        base_url, socket_path = address_of(url)
        super().__init__(base_url, _UPDATE_S)
        transport = httpx.HTTPTransport(uds=socket_path)
        self.http = httpx.Client(base_url=base_url, transport=transport, timeout=_UPDATE_S)

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        self.http.post(f"/{path}", json=json).raise_for_status()


class GpuSender:
    """Sends from this process's current GPU to one server.

    Args:
        url: of the server.
        sync: `nccl` or `ipc`.

    Raises:
        EngineError: this process has no GPU.
    """

    def __init__(self, url: str, sync: str) -> None:
        if not torch.cuda.is_available():
            raise EngineError(f'sync = "{sync}" needs a CUDA device in the trainer; use "file"')
        self._source = FolderSource(Path(), "cuda")
        self._client = _SocketClient(url)
        with _one_at_a_time:
            self._engine = WeightTransferTrainerFactory.trainer_init(
                self._init_info(url, sync), client=self._client, source=self._source
            )

    async def send(self, folder: Path) -> None:
        """Send all tensors of the folder."""
        await asyncio.to_thread(self._send, folder)

    async def close(self) -> None:
        """Leave the process group."""
        await asyncio.to_thread(self._engine.shutdown)
        self._client.http.close()

    def _send(self, folder: Path) -> None:
        with _one_at_a_time:
            self._source.folder = folder
            self._engine.send_weights()

    def _init_info(self, url: str, sync: str) -> TrainerInitInfo:
        if sync == "ipc":
            return IPCTrainerInitInfo(rank=0, packed=True)
        answer = self._client.http.get("/get_world_size").raise_for_status()
        return NCCLTrainerInitInfo(
            rank=0,
            master_address=_own_address(url),
            master_port=_free_port(),
            world_size=1 + int(answer.json()["world_size"]),
        )


def _own_address(url: str) -> str:
    """Return the address at which the server's machine reaches this one."""
    if url.startswith("unix:"):
        return "127.0.0.1"
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 80)) as connection:
        return str(connection.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])
