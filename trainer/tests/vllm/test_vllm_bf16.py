"""A server that samples in bfloat16 beside a trainer in float32, after a real sync."""

import asyncio

import pytest
import torch

from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.anyio]


async def test_bfloat16_is_near_the_trainer_after_a_sync_and_far_without(
    old_folder, new_folder, server_python, request_of, differences
):
    config = VllmConfig(model=str(old_folder), python=server_python, dtype="bfloat16", cache_mb=64)
    engine = VllmEngine(config)
    await engine.start()
    try:
        of = {}
        for version, folder in enumerate((old_folder, new_folder)):
            await engine.load_weights(folder, version)
            requests = [
                request_of(f"{version}-{n}", temperature=0.7, max_tokens=100) for n in range(8)
            ]
            found = await asyncio.gather(*map(engine.generate, requests))
            of[version] = torch.cat([differences(new_folder, each, 0.7) for each in found])
    finally:
        await engine.stop()
    print(
        f"mean |Δ| {of[1].abs().mean():.2g}, mean Δ {of[1].mean():.2g}, max {of[1].abs().max():.2g}"
    )
    assert of[1].abs().mean() <= 0.02
    assert of[1].mean().abs() <= 2e-3
    assert of[0].abs().mean() > 1.0  # of the sync that was not made
