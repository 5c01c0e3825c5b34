"""Prefix sharing of the engine `hf`: cost of a next turn with and without the cached prefix.

Both are measured in one run, on the same prompts: loading weights drops the cache between them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import structlog
import torch
from tokenizers import Tokenizer, models
from transformers import Qwen3Config, Qwen3ForCausalLM

from mixharness.engine import GenerateRequest, Sampling
from mixharness_trainer.engines.hf import HfConfig, HfEngine

VOCAB_SIZE = 1024
FIRST_TURN, NEXT_TURN, SAMPLED = 800, 100, 30


def save_model(folder: Path) -> None:
    """Save a Qwen3 of 0.9 million random parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))


async def sample(
    engine: HfEngine, turn: str, prompts: list[list[int]], num_tokens: int
) -> tuple[float, list[list[int]]]:
    """Sample all prompts at once; return the seconds it took and the prompts with their answers."""
    sampling = Sampling(temperature=1.0, max_tokens=num_tokens, stop_ids=())
    requests = [
        GenerateRequest(
            session_id=str(i), request_id=f"{turn}-{i}", prompt_ids=tuple(ids), sampling=sampling
        )
        for i, ids in enumerate(prompts)
    ]
    started_s = time.perf_counter()
    answers = await asyncio.gather(*map(engine.generate, requests))
    wall_s = time.perf_counter() - started_s
    return wall_s, [[*p, *a.ids] for p, a in zip(prompts, answers, strict=True)]


async def measure(conversations: int) -> dict[str, float]:
    """Play two turns of every conversation, the second one twice."""
    numbers = random.Random(0)
    prompts = [
        [numbers.randrange(VOCAB_SIZE) for _ in range(FIRST_TURN)] for _ in range(conversations)
    ]
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        engine = HfEngine(HfConfig(model=folder))
        await engine.start()
        _, histories = await sample(engine, "first", prompts, SAMPLED)
        continued = [
            [*h, *(numbers.randrange(VOCAB_SIZE) for _ in range(NEXT_TURN))] for h in histories
        ]
        with_s, _ = await sample(engine, "with", continued, 1)
        turn_s, _ = await sample(engine, "turn", continued, SAMPLED)
        await engine.load_weights(Path(folder), 1)
        without_s, _ = await sample(engine, "without", continued, 1)
        await engine.stop()
    return {
        "conversations": conversations,
        "prompt_tokens": len(continued[0]),
        "new_prompt_tokens": NEXT_TURN,
        "prefill_with_reuse_s": with_s,
        "prefill_without_reuse_s": without_s,
        "ratio": with_s / without_s,
        "sampled_tokens_per_s": conversations * SAMPLED / turn_s,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--conversations", type=int, default=16)
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    result = asyncio.run(measure(args.conversations))
    if args.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:<26} {value:.4g}")


if __name__ == "__main__":
    main()
