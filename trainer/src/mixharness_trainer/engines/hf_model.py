"""What the engine `hf` runs: building and refilling model and manager. No requests here."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import (
    FullAttentionCacheAllocator,
    group_layers_by_attn_type,
)
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingTemperatureLogitsWarper,
)
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.utils import (
    find_head_dim,
    find_num_key_value_heads,
)
from transformers.utils.logging import disable_progress_bar

from mixharness.errors import EngineError
from mixharness_trainer.engines import packed_attention

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_PER_REQUEST = 0.5  # any default but 1.0 makes transformers take a temperature per request


def load_model(folder: Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Load a causal language model for sampling.

    Raises:
        EngineError: some of the folder's weights are missing.
    """
    disable_progress_bar()
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    if info["missing_keys"]:
        raise EngineError(f"{folder} lacks the weights {sorted(info['missing_keys'])}")
    return model.to(device).eval()


def cache_tokens(model: PreTrainedModel, cache_mb: int) -> int:
    """Return how many tokens' keys and values fit in `cache_mb` MiB."""
    config = model.config.get_text_config()
    bytes_per_token = config.num_hidden_layers * FullAttentionCacheAllocator.get_bytes_per_page(
        find_num_key_value_heads(config), find_head_dim(config), model.dtype, page_size=1
    )
    return cache_mb * 2**20 // bytes_per_token


def make_manager(model: PreTrainedModel, batching: Mapping[str, Any]) -> ContinuousBatchingManager:
    """Make a batching manager that keeps the distribution contract (TOKENS_AND_TREES section 1).

    Args:
        model: Loaded with `load_model`; on a CPU its attention is exchanged.
        batching: Sizes and seed for `ContinuousBatchingConfig`.

    Raises:
        EngineError: transformers would change the logits by more than the temperature.
    """
    manager = model.init_continuous_batching(
        GenerationConfig(
            do_sample=True, temperature=_PER_REQUEST, top_k=0, top_p=1.0, eos_token_id=-1
        ),
        ContinuousBatchingConfig(
            return_logprobs=True,
            per_request_processors=True,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=model.device.type != "cpu",
            **batching,
        ),
    )
    warpers = [type(warper) for warper in manager.logit_processor.logits_processor]
    if warpers != [ContinuousBatchingTemperatureLogitsWarper]:
        raise EngineError(f"logits must pass the temperature alone, but pass {warpers}")
    only_full = list(group_layers_by_attn_type(model.config.get_text_config())) == [
        "full_attention"
    ]
    if model.device.type == "cpu" and only_full:
        # Only after the manager is made: it checks the name it is given, and reads it at start.
        model.set_attn_implementation(packed_attention.NAME)
        _keep_freed_pages()
    return manager


def sampled_so_far(
    manager: ContinuousBatchingManager, request_id: str
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the ids and log-probs of a request that is still being sampled; none of another."""
    processor = manager.batch_processor
    state = processor.scheduler.active_requests.get(request_id) if processor else None
    if state is None:
        return (), ()
    output = state.to_generation_output()
    # The sampling thread goes on meanwhile, and appends an id before its log-prob.
    length = min(len(output.generated_tokens), len(output.logprobs))
    return tuple(output.generated_tokens[:length]), tuple(output.logprobs[:length])


def drop_cache(manager: ContinuousBatchingManager) -> None:
    """Forget all keys and values; call while the manager is paused and nothing is awaited."""
    processor = manager.batch_processor
    for request_id in list(processor.scheduler.active_requests):  # cancelled, not yet cleared
        processor.scheduler.finish_request(request_id)
    processor.cache.reset()


def read_weights(model: PreTrainedModel, folder: Path) -> dict[str, Tensor]:
    """Read all safetensors files of a folder and check them against the model, changing nothing.

    Raises:
        EngineError: names or shapes do not match the model's.
    """
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(path))
    state = model.state_dict()
    given = {state[name].data_ptr() for name in weights if name in state}
    problems = [
        f"{name} is missing"
        for name, tensor in state.items()
        if name not in weights and tensor.data_ptr() not in given  # a tied weight is saved once
    ]
    problems += [f"{name} is not in the model" for name in weights if name not in state]
    problems += [
        f"{name} has shape {tuple(weights[name].shape)}, the model's has {tuple(tensor.shape)}"
        for name, tensor in state.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if problems:
        raise EngineError(f"weights in {folder} do not fit: " + "; ".join(problems[:5]))
    return weights


@torch.no_grad()
def copy_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy checked weights into the model's own storages."""
    state = model.state_dict()
    for name, tensor in weights.items():
        state[name].copy_(tensor)


def _keep_freed_pages() -> None:
    """Let glibc keep freed memory.

    Each step gathers megabytes of keys; faulting the pages in anew cost four times the copy.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        libc.mallopt(_M_TRIM_THRESHOLD, 512 * 2**20)
