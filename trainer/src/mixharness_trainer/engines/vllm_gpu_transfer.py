"""Weights from trainer to vLLM between GPUs, by vLLM's own trainer side: NCCL or CUDA IPC.

Imported only for `sync = "nccl"` or `"ipc"`, because it needs vLLM in the trainer's process.
"""

from __future__ import annotations

import base64
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import (
    ParamMeta,
    WeightSource,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import TrainerInitInfo
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm_transfer import SyncClient

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


class _PicklingClient(SyncClient):
    """Sends CUDA handles the way that vLLM reads them over HTTP."""

    def update_weights(self, update_info: Any) -> None:
        """Transfer."""
        handles = update_info.pop("ipc_handles", None)
        if handles is not None:
            text = base64.b64encode(pickle.dumps(handles)).decode()
            update_info["ipc_handles_pickled"] = text
        super().update_weights(update_info)


class GpuSender:
    """Sends from this process's current GPU to one server.

    Args:
        client: of the server.
        sync: `nccl` or `ipc`.

    Raises:
        EngineError: this process has no GPU.
    """

    def __init__(self, client: SyncClient, sync: str) -> None:
        if not torch.cuda.is_available():
            raise EngineError(f'sync = "{sync}" needs a CUDA device in the trainer; use "file"')
        self._source = FolderSource(Path(), "cuda")
        info: TrainerInitInfo = IPCTrainerInitInfo(rank=0, packed=True)
        if sync == "nccl":
            info = NCCLTrainerInitInfo(
                rank=0,
                master_address=_own_address(client.url),
                master_port=_free_port(),
                world_size=1 + client.world_size(),
            )
        self._client = _PicklingClient(client.url)
        with _one_at_a_time:
            self._engine = WeightTransferTrainerFactory.trainer_init(
                info, client=self._client, source=self._source
            )

    def send(self, folder: Path) -> None:
        """Send all tensors of the folder."""
        self._source.folder = folder
        with _one_at_a_time:
            self._engine.send_weights()

    def close(self) -> None:
        """Leave the process group."""
        self._engine.shutdown()
        self._client.close()


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
