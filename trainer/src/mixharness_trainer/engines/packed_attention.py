"""Attention for a packed batch on a CPU, one request at a time. No cache lives here.

Stock `sdpa` under continuous batching scores every query of a batch against the keys of all its
requests and masks the strangers, so its cost grows with the square of the number of conversations.
Here each request meets only its own keys.

Shapes: Q query tokens and K key tokens of all requests, H query heads, G key heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed_sdpa"
"""Name under which transformers knows this attention."""


def packed_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend causally within each request of the batch.

    Args:
        module: The attention layer (transformers' calling convention).
        query: [1, H, Q, D].
        key: [1, G, K, D], cached and new.
        value: [1, G, K, D].
        attention_mask: Always None under this name.
        **kwargs: `cu_seq_lens_q` and `cu_seq_lens_k`, request borders in Q and K; `scaling`.

    Returns:
        [1, Q, H, D], and no attention weights.

    Raises:
        ValueError: the layer slides its window, which this function does not do.
    """
    if kwargs.get("sliding_window") is not None:
        raise ValueError("packed_sdpa attends to whole prefixes; this layer has a sliding window")
    out = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
    borders_q, borders_k = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
    for i in range(len(borders_q) - 1):
        rows, columns = slice(*borders_q[i : i + 2]), slice(*borders_k[i : i + 2])
        q, k, v = query[:, :, rows], key[:, :, columns], value[:, :, columns]
        out[rows] = _attend(q, k, v, kwargs.get("scaling"))
    return out.unsqueeze(0), None


def _attend(q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> Tensor:
    """Return [n, H, D] for one request's n newest tokens against all its keys."""
    heads, new, total = q.shape[1], q.shape[2], k.shape[2]
    if new == 1:  # heads that share keys become rows: no key is repeated
        rows = q.reshape(1, k.shape[1], heads // k.shape[1], -1)
        return scaled_dot_product_attention(rows, k, v, scale=scaling).reshape(1, heads, -1)
    mask = None
    if new != total:
        mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril_(total - new)
    attended = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


AttentionInterface.register(NAME, packed_sdpa)
