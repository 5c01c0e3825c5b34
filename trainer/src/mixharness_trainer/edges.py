"""From a packed batch to log-probs and entropies at its edges. What a loss makes of them: loss.py.

Shapes: N tokens, E edges, C edges of a chunk, V vocabulary, X hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from mixharness_trainer.attention import Layout, mask_arguments
from mixharness_trainer.packing import PackedBatch, Row

CHUNK_LOGITS = 2**24
"""Logits held at once (64 MiB in float32)."""


def edge_values(
    model: PreTrainedModel, batch: PackedBatch, layout: Layout
) -> tuple[Tensor, Tensor]:
    """Return log π(target) and the full-vocabulary entropy at the predicting position, both [E].

    Both are of softmax(logits / T), T being the edge's own. Logits exist only at predicting
    positions, chunk by chunk; with more than one chunk the backward pass computes them again.
    """
    hidden_NX = torch.cat([_hidden(model, row, layout) for row in batch.rows])
    hidden_EX = hidden_NX.index_select(0, batch.position_E)
    head = model.get_output_embeddings()
    size = max(1, CHUNK_LOGITS // model.config.get_text_config().vocab_size)
    columns = (hidden_EX, batch.target_E, batch.temperature_E)
    chunks = list(zip(*(column.split(size) for column in columns), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        values = [_chunk_values(head, *chunk) for chunk in chunks]
    else:
        values = [checkpoint(_chunk_values, head, *chunk, use_reentrant=False) for chunk in chunks]
    logps, entropies = zip(*values, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _hidden(model: PreTrainedModel, row: Row, layout: Layout) -> Tensor:
    """Return the last hidden states [N, X] of one row."""
    masks = {}
    if layout is Layout.TREE:
        masks = mask_arguments(model.config._attn_implementation, row, model.dtype)
    output = model.get_decoder()(
        input_ids=row.ids_N[None], position_ids=row.depth_N[None], use_cache=False, **masks
    )
    return output.last_hidden_state[0]


def _chunk_values(
    head: torch.nn.Module, hidden_CX: Tensor, target_C: Tensor, temperature_C: Tensor
) -> tuple[Tensor, Tensor]:
    logits_CV = head(hidden_CX).float() / temperature_C[:, None]
    normalizer_C = logits_CV.logsumexp(-1)
    logp_C = logits_CV.gather(1, target_C[:, None])[:, 0] - normalizer_C
    mean_logit_C = (logits_CV.softmax(-1) * logits_CV).sum(-1)
    return logp_C, normalizer_C - mean_logit_C
