"""Proves before training that an engine samples from the trainer's policy and says so truly.

It samples a few tokens at T = 0.7, where a log-prob of the wrong temperature shows, and compares
their log-probs with the trainer's own (TOKENS_AND_TREES section 1, "the distribution contract").

Shapes: E sampled tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog
import torch

from mixharness.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from mixharness.errors import MixHarnessError
from mixharness.types import NodeKind, TokenNode, TokenTree
from mixharness_trainer.edges import edge_values
from mixharness_trainer.packing import Member, pack
from mixharness_trainer.policy import Policy

log = structlog.get_logger()

TEMPERATURE = 0.7
MAX_MEAN_GAP = 0.02
"""Mean |Δ log p| that another precision of the same weights may make."""
_NUM_SEQUENCES = 4
_NUM_TOKENS = 16
_MAX_PROMPT = 40
_PROMPT = "<|im_start|>user\nName a colour, then count: one, two, three.<|im_end|>\n"
_NOISE = 1e-6


class SelfTestError(MixHarnessError):
    """The engine does not sample from the trainer's policy, or says something else of it."""


async def self_test(policy: Policy, engine: InferenceEngine[Any]) -> float:
    """Compare engine and trainer on a few tokens; return the mean |Δ log p|.

    Raises:
        SelfTestError: ids, versions or log-probs are not those of the trainer's policy.
        EngineError: the engine refused.
    """
    tokenizer = engine.tokenizer.tokenizer
    prompt = tokenizer.encode(_PROMPT, add_special_tokens=False).ids
    lengths = range(_MAX_PROMPT - _NUM_SEQUENCES, _MAX_PROMPT)
    requests = [_request(number, prompt[:length]) for number, length in enumerate(lengths)]
    generations = await asyncio.gather(*map(engine.generate, requests))
    for request, generation in zip(requests, generations, strict=True):
        _check_shape(engine, request, generation)
    at_T = _mean_gap(policy, requests, generations, TEMPERATURE)
    at_1 = _mean_gap(policy, requests, generations, 1.0)
    log.info("engine_self_test", engine=engine.name, mean_gap=at_T, mean_gap_at_1=at_1)
    if at_1 <= MAX_MEAN_GAP and at_1 < at_T and at_T > _NOISE:
        raise SelfTestError(
            f"engine {engine.name!r} sampled at T = {TEMPERATURE} but gives log-probs that fit "
            f"T = 1 better (mean |Δ log p| {at_1:.2g} against {at_T:.2g}): it must give those of "
            "softmax(logits / T)"
        )
    if not at_T <= MAX_MEAN_GAP:
        raise SelfTestError(
            f"engine {engine.name!r} and the trainer disagree on the same tokens: mean |Δ log p| "
            f"{at_T:.3g} at T = {TEMPERATURE}, at most {MAX_MEAN_GAP} is right; has the engine "
            "other weights, a lower precision, or top_p, top_k or penalties?"
        )
    return at_T


def _request(number: int, prompt_ids: Sequence[int]) -> GenerateRequest:
    return GenerateRequest(
        session_id=f"self-test-{number}",
        request_id=f"self-test-{number}",
        prompt_ids=tuple(prompt_ids),
        sampling=Sampling(temperature=TEMPERATURE, max_tokens=_NUM_TOKENS, stop_ids=()),
    )


def _check_shape(
    engine: InferenceEngine[Any], request: GenerateRequest, generation: Generation
) -> None:
    versions = {span.version for span in generation.versions}
    if (len(generation.ids), generation.finish_reason) != (_NUM_TOKENS, "length"):
        raise SelfTestError(
            f"engine {engine.name!r} was asked for {_NUM_TOKENS} tokens without any to stop at "
            f"and gave {len(generation.ids)}, finished by {generation.finish_reason!r}"
        )
    if versions != {engine.policy_version}:
        raise SelfTestError(
            f"engine {engine.name!r} samples with version {engine.policy_version} of the weights, "
            f"but stamped {sorted(versions)} on request {request.request_id}"
        )


@torch.no_grad()
def _mean_gap(
    policy: Policy,
    requests: Sequence[GenerateRequest],
    generations: Sequence[Generation],
    temperature: float,
) -> float:
    """Compare with what training itself computes, at a temperature: packed, in the same layout."""
    members = [
        _member(request, generation, temperature)
        for request, generation in zip(requests, generations, strict=True)
    ]
    (batch,) = pack([members], max_tokens=2**30, layout=policy.layout)
    batch = batch.to(policy.model.device)
    own_E, _ = edge_values(policy.model, batch, policy.layout)
    return float((own_E - batch.logp_rollout_E).abs().mean())


def _member(request: GenerateRequest, generation: Generation, temperature: float) -> Member:
    prompt = TokenNode(parent=-1, kind=NodeKind.ENVIRONMENT, ids=request.prompt_ids, depth=0)
    sampled = TokenNode(
        parent=0,
        kind=NodeKind.SAMPLED,
        ids=generation.ids,
        depth=len(request.prompt_ids),
        rollout_id=request.session_id,
        call_id=request.request_id,
        logprobs=generation.logprobs,
        versions=generation.versions,
        temperature=temperature,
        trained=True,
    )
    return Member(
        rollout_id=request.session_id,
        tree=TokenTree((prompt, sampled)),
        advantages=(0.0,) * len(generation.ids),
    )
