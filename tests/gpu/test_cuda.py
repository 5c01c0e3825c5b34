"""What only a CUDA device can show: `pytest tests/gpu`. The same paths run on CPU elsewhere."""

from pathlib import Path

import pytest
import torch

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.engine import GenerateRequest, Sampling
from mixharness.types import NodeKind, TokenNode, TokenTree
from mixharness_trainer.edges import edge_values
from mixharness_trainer.engines.hf import HfConfig, HfEngine
from mixharness_trainer.packing import Member, pack
from mixharness_trainer.policy import Policy, PolicyShape, new_policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
PROMPT, SAMPLED = tuple(range(20, 120)), tuple(range(40, 72))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_policy(tmp_path / "policy", byte_tokenizer(), PolicyShape(layers=2), seed=1)


def edge_logps(folder: Path, device: str, sampled: tuple[int, ...]) -> torch.Tensor:
    """Return the log-probs of two sampled branches under one prompt, packed as one tree."""
    prompt = TokenNode(parent=-1, kind=NodeKind.ENVIRONMENT, ids=PROMPT, depth=0)
    branches = [
        TokenNode(
            parent=0,
            kind=NodeKind.SAMPLED,
            ids=ids,
            depth=len(PROMPT),
            rollout_id="r",
            call_id=f"call-{number}",
            logprobs=(0.0,) * len(ids),
            trained=True,
        )
        for number, ids in enumerate((sampled, sampled[::-1]))
    ]
    tree = TokenTree((prompt, *branches))
    advantages = [0.0] * tree.trained_tokens
    member = Member(rollout=0, rollout_id="r", tree=tree, advantages=advantages, weight=1.0)
    policy = Policy.load(folder, lr=0.0, device=device)
    (batch,) = pack([[member]], max_tokens=4096, layout=policy.layout)
    with torch.no_grad():
        values = edge_values(policy.model, batch.to(policy.model.device), policy.layout)
    return values[0].float().cpu()


def test_flex_attention_in_bfloat16_agrees_with_the_cpu(folder: Path) -> None:
    gap = edge_logps(folder, "cuda", SAMPLED) - edge_logps(folder, "cpu", SAMPLED)
    assert gap.abs().mean() < 0.02
    assert gap.mean().abs() < 2e-3


@pytest.mark.anyio
async def test_the_engine_reports_the_trainers_log_probs(folder: Path) -> None:
    engine = HfEngine(HfConfig(model=str(folder), device="cuda"))
    await engine.start()
    try:
        sampling = Sampling(temperature=1.0, max_tokens=32, stop_ids=())
        found = await engine.generate(
            GenerateRequest(session_id="s", request_id="q", prompt_ids=PROMPT, sampling=sampling)
        )
    finally:
        await engine.stop()
    trained = edge_logps(folder, "cuda", found.ids)[: len(found.ids)]
    assert (trained - torch.tensor(found.logprobs)).abs().mean() < 0.02
