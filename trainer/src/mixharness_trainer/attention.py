"""Who attends to whom in a packed row, for each attention backend. Packing itself is packing.py.

In preorder a subtree is a range, so ancestry is one comparison: query q sees key k exactly when
k <= q < end[k] (TOKENS_AND_TREES section 6).

Shapes: N tokens of a row, Q queries of a block, K keys that block can see, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mixharness.errors import ConfigError

if TYPE_CHECKING:
    from mixharness_trainer.packing import Row

TREE_ATTENTION = "mixharness_tree"
"""Name under which `tree_attention` is registered with transformers."""
QUERY_BLOCK = 512


class Layout(StrEnum):
    """How rollouts are laid out for a model family."""

    TREE = "tree"
    """Shared prefixes once, under an ancestor mask."""
    PATHS = "paths"
    """Each root-to-leaf path by itself, under the model's own mask."""


_STATEFUL_KEYS = ("ssm", "mamba", "rwkv", "conv_kernel", "linear_num_key_heads", "state_size")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def layout_for(config: PreTrainedConfig) -> tuple[Layout, str]:
    """Choose the layout for a model family from its config; also return the reason.

    Raises:
        ConfigError: no layout trains this model right, with the reason.
    """
    config = config.get_text_config()
    values = {key: value for key, value in config.to_dict().items() if value is not None}
    _refuse_untrainable(config.model_type, values)
    kinds = set(values.get("layer_types", ())) - {"full_attention"}
    if kinds:
        return Layout.PATHS, f"layers of type {', '.join(sorted(kinds))}"
    stateful = [key for key in values if any(word in key for word in _STATEFUL_KEYS)]
    if stateful and "layer_types" not in values:
        return Layout.PATHS, f"state carried between tokens ({stateful[0]})"
    if values.get("sliding_window") and "layer_types" not in values:
        return Layout.PATHS, "sliding-window attention"
    rope = (values.get("rope_parameters") or {}).get("rope_type", "default")
    if rope in _LENGTH_DEPENDENT_ROPE:
        return Layout.PATHS, f"{rope} position scaling depends on the length of the row"
    return Layout.TREE, "full attention in every layer"


def _refuse_untrainable(family: str, values: dict[str, Any]) -> None:
    if values.get("output_router_logits"):
        message = (
            f"{family} adds a router loss, whose mean over a packed row differs from the one over "
            "separate paths; set output_router_logits = false"
        )
        raise ConfigError("the model's config", [("output_router_logits", message)])
    for key in _SCALED_LOGITS:
        if values.get(key) not in (None, 1.0):
            message = f"{family} changes its logits after the head, which edges.py does not do"
            raise ConfigError("the model's config", [(key, message)])


def ancestor_mask(end_N: Tensor) -> Tensor:
    """Return the boolean mask [1, 1, N, N], true where the query may see the key.

    It is right under sdpa only: eager attention adds its mask to the scores, where a boolean one
    is silently wrong. `additive` turns it into what eager needs.
    """
    position_N = torch.arange(len(end_N), device=end_N.device)
    query, key = position_N[:, None], position_N[None, :]
    return ((key <= query) & (query < end_N[None, :]))[None, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask as scores to add: 0 where true, the lowest number where false."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def flex_mask(end_N: Tensor) -> BlockMask:
    """Return the FlexAttention block mask, which skips blocks nobody sees (CUDA)."""

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end_N[key])

    size = len(end_N)
    return create_block_mask(sees, None, None, size, size, device=str(end_N.device))


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Queries [start, stop) and the keys that at least one of them sees."""

    start: int
    stop: int
    keys_K: Tensor
    mask_QK: Tensor


def query_blocks(end_N: Tensor, size: int = QUERY_BLOCK) -> list[QueryBlock]:
    """Cut a row into blocks of queries, each with only the keys it can see."""
    blocks = []
    for start in range(0, len(end_N), size):
        stop = min(start + size, len(end_N))
        keys_K = (end_N[:stop] > start).nonzero()[:, 0]
        query = torch.arange(start, stop, device=end_N.device)[:, None]
        mask_QK = (keys_K <= query) & (query < end_N[keys_K])
        blocks.append(QueryBlock(start, stop, keys_K, mask_QK))
    return blocks


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree_blocks: Sequence[QueryBlock] = (),
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend block by block, skipping keys no query of the block sees.

    The signature is transformers' attention interface. Without `tree_blocks` it is plain sdpa.
    """
    if not tree_blocks:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    parts = [
        scaled_dot_product_attention(
            query[:, :, block.start : block.stop],
            key.index_select(2, block.keys_K),
            value.index_select(2, block.keys_K),
            attn_mask=block.mask_QK,
            scale=options.get("scaling"),
        )
        for block in tree_blocks
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(TREE_ATTENTION, tree_attention)
AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


def mask_arguments(backend: str, row: Row, dtype: torch.dtype) -> dict[str, Any]:
    """Return what a model's forward needs so that `backend` sees ancestors only.

    Raises:
        ValueError: the backend cannot take a tree.
    """
    if backend == TREE_ATTENTION:
        # A 4-D mask makes transformers build none of its own; the blocks hold the real one.
        unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=row.end_N.device)
        return {"attention_mask": unread, "tree_blocks": query_blocks(row.end_N)}
    if backend == "flex_attention":
        return {"attention_mask": flex_mask(row.end_N)}
    if backend == "sdpa":
        return {"attention_mask": ancestor_mask(row.end_N)}
    if backend == "eager":
        return {"attention_mask": additive(ancestor_mask(row.end_N), dtype)}
    raise ValueError(f"attention backend {backend!r} has no tree mask; use sdpa or eager")
