"""Which token the engine `hf` takes: by a draw of the request's own, whatever is sampled beside it.

transformers draws all tokens of a batch from one generator, so that a sample depends on its
neighbours and on all that was sampled before. Here a token's draw depends on the seed, the request
and its place alone: a rollout that a killed run has to repeat is drawn alike.

Shapes: N new tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
)
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import RequestState


class Draws(ContinuousBatchingLogitsProcessor):
    """Brings each new token's draw to the device, beside the temperatures; leaves the scores."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012 - as the base class declares it
    ignored_kwargs = ()

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draw_N = torch.empty(0, dtype=torch.int32)

    def join(self, manager: ContinuousBatchingManager) -> None:
        """Come along with each batch; call before the manager is started."""
        manager.logit_processor.logits_processor.append(self)
        manager.logit_processor.tensors_required += 1

    def sample_for(self, manager: ContinuousBatchingManager) -> None:
        """Take the manager's sampling over; call when it runs and has nothing to sample."""
        manager.batch_processor.model_runner._sample = self.sample

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Fill in what no request reads."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        """Return the draws of a batch [N], int32."""
        draws = [_draw(self._seed, request.state) for request in requests_with_new_token]
        return torch.tensor(draws, dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Keep the draws for `sample`, which follows."""
        self._draw_N = tensor_arg[: scores.size(0)]
        return scores

    def sample(self, scores: Tensor, output_ids: Tensor) -> None:
        """Write the tokens, and the bits of their log-probs, where transformers expects them.

        Args:
            scores: logits / temperature [1, N, V].
            output_ids: row 0 takes the tokens, row 1 the log-probs; int32.
        """
        probs_NV = scores[0].softmax(dim=-1)
        sums_NV = probs_NV.double().cumsum(dim=-1)
        goal_N1 = (self._draw_N[:, None].double() + (2**31 + 0.5)) / 2**32 * sums_NV[:, -1:]
        tokens_N1 = torch.searchsorted(sums_NV, goal_N1)
        logprobs_N = probs_NV.gather(1, tokens_N1)[:, 0].log()
        output_ids[0, : len(tokens_N1)].copy_(tokens_N1[:, 0])
        output_ids[1, : len(tokens_N1)].copy_(logprobs_N.view(dtype=torch.int32))


def _draw(seed: int, state: RequestState) -> int:
    place = len(state.initial_tokens) + len(state.generated_tokens)
    name = f"{seed}/{state.request_id}/{place}".encode()
    return int.from_bytes(blake2b(name, digest_size=4).digest(), signed=True)
