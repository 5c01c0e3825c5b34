"""Low-rank adapters by peft: put into a model, saved, restored, merged. The model is policy.py's.

The model keeps its class: layers are replaced in place, and `adapter/` folders are peft's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from mixharness_trainer.lora_files import ADAPTER_WEIGHTS

ADAPTER = "adapter"
"""Name of the adapter's folder beside whole weights."""
_NAME = "default"
_PREFIX = "base_model.model."  # what peft's own files put before a parameter's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Adapters on every linear layer but the output layer: W + (alpha / rank) · B · A."""

    rank: int
    alpha: float


def add_adapters(model: PreTrainedModel, lora: Lora) -> None:
    """Freeze the model and add adapters, in float32; B is 0, so that nothing changes yet.

    Source: Hu et al. 2021 (arXiv:2106.09685), section 4.1.
    """
    from peft import inject_adapter_in_model  # takes a second to import

    inject_adapter_in_model(_config(lora, "all-linear"), model, _NAME)
    for parameter in _parameters(model).values():
        parameter.data = parameter.data.float()


def save_adapter(model: PreTrainedModel, lora: Lora, folder: Path) -> None:
    """Write the adapter as peft does, in a folder that peft and vLLM load."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {name: p.detach().contiguous() for name, p in _parameters(model).items()}
    save_file(named, folder / ADAPTER_WEIGHTS)
    modules = sorted({name.split(".")[-3] for name in named})
    config = _config(lora, modules)
    config.inference_mode = True
    config.save_pretrained(str(folder))


def restore_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put back what `save_adapter` wrote.

    Raises:
        KeyError: the model has other adapters.
    """
    parameters = _parameters(model)
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    if tensors.keys() != parameters.keys():
        raise KeyError(f"{folder} has adapters for other layers than the model")
    for name, tensor in tensors.items():
        parameters[name].data.copy_(tensor)


@torch.no_grad()
def merged(model: PreTrainedModel) -> Mapping[str, Tensor]:
    """Return the state of the model without adapters that computes the same, up to rounding."""
    from peft.tuners.lora import LoraLayer

    state = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            weight = module.get_base_layer().weight
            delta = module.get_delta_weight(_NAME)
            state[f"{name}.weight"] = (weight.float() + delta.float()).to(weight.dtype)
    return state


def _config(lora: Lora, modules: str | list[str]) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=modules, task_type="CAUSAL_LM"
    )


def _parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return the adapters' parameters by the names that peft's files have."""
    return {
        _PREFIX + name.replace(f".{_NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }
