"""Runs inside a vLLM server: weight transfer by files that trainer and server both see.

vLLM's own engines move tensors between GPUs only. The files are mapped, so what the trainer has
just written is read from the page cache. Imported by vLLM through its plugin group, never by the
trainer; what asks for a transfer is sync.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


def register() -> None:
    """Register the backend `mixharness_file`; vLLM calls it in every process, maybe twice."""
    with contextlib.suppress(ValueError):  # it is there already
        WeightTransferEngineFactory.register_engine("mixharness_file", FileTransferEngine)


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """There is nothing to agree on."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """Where the new weights are."""

    folder: str
    """Holds safetensors files in Hugging Face layout."""


class FileTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Loads a folder of safetensors into the running model, layer by layer."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Do nothing: a file needs no connection."""

    def start_weight_update(self) -> None:
        """Put the layers back into the layout in which they are loaded."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one folder; unlike the base class, where there is no accelerator, too."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Load all tensors of the folder."""
        self.model.load_weights(_tensors(Path(update_info.folder), self.device))

    def finish_weight_update(self) -> None:
        """Put the layers into the layout in which they compute."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            _pack_embeddings(self.model)

    def shutdown(self) -> None:
        """Release nothing."""


def _pack_embeddings(model: torch.nn.Module) -> None:
    """Pack the weights of embedding and output layer anew.

    On a CPU vLLM computes with packed copies. Of an output layer that is tied to the embedding the
    reload refreshes the weights but not the copy: it would go on with the old weights.
    """
    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding):
            layer.quant_method.process_weights_after_loading(layer)


def _tensors(folder: Path, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt", device=str(device)) as file:
            for name in file.keys():  # noqa: SIM118  a safetensors file is no mapping
                yield name, file.get_tensor(name)
