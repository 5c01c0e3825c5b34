"""From a packed batch to log-probs, entropies and KL at its edges. Weights of a loss: loss.py.

Shapes: N tokens, E edges, C edges of a chunk, V vocabulary, X hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
    """Return log π(target) and the full-vocabulary entropy at the predicting position, both [E]."""
    return head_values(model, edge_states(model, batch, layout), batch)


def edge_states(model: PreTrainedModel, batch: PackedBatch, layout: Layout) -> Tensor:
    """Return the last hidden state [E, X] at each edge's predicting position: s_t of the papers."""
    hidden_NX = torch.cat([_hidden(model, row, layout) for row in batch.rows])
    return hidden_NX.index_select(0, batch.position_E)


def head_values(
    model: PreTrainedModel, states_EX: Tensor, batch: PackedBatch
) -> tuple[Tensor, Tensor]:
    """Return log π(target) and the entropy, both [E], from the model's own hidden states.

    Both are of softmax(logits / T), T being the edge's own. Logits exist only at predicting
    positions, chunk by chunk; with more than one chunk the backward pass computes them again.
    """
    columns = (states_EX, batch.target_E, batch.temperature_E)
    chunks = _in_chunks(partial(_chunk_values, model.get_output_embeddings()), columns, model)
    logps, entropies = zip(*chunks, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def head_divergence(
    model: PreTrainedModel,
    states_EX: Tensor,
    reference: PreTrainedModel,
    reference_EX: Tensor,
    batch: PackedBatch,
) -> Tensor:
    """Return KL(model ‖ reference) [E] over the full vocabulary, at the edge's temperature.

    Source: ClawGym II (arXiv:2608.16798), the D_KL of L_GRPO. In chunks, like `head_values`.
    """
    heads = (model.get_output_embeddings(), reference.get_output_embeddings())
    columns = (states_EX, reference_EX, batch.temperature_E)
    return torch.cat(_in_chunks(partial(_chunk_divergence, *heads), columns, model))


def _in_chunks(
    compute: Callable[..., Any], columns: Sequence[Tensor], model: PreTrainedModel
) -> list[Any]:
    """Apply `compute` to chunks of E that are small enough for logits to be held."""
    size = max(1, CHUNK_LOGITS // model.config.get_text_config().vocab_size)
    chunks = list(zip(*(column.split(size) for column in columns), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        return [compute(*chunk) for chunk in chunks]
    return [checkpoint(compute, *chunk, use_reentrant=False) for chunk in chunks]


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


def _chunk_divergence(
    head: torch.nn.Module,
    reference_head: torch.nn.Module,
    hidden_CX: Tensor,
    reference_CX: Tensor,
    temperature_C: Tensor,
) -> Tensor:
    logp_CV = (head(hidden_CX).float() / temperature_C[:, None]).log_softmax(-1)
    ref_CV = (reference_head(reference_CX).float() / temperature_C[:, None]).log_softmax(-1)
    return (logp_CV.exp() * (logp_CV - ref_CV)).sum(-1)
