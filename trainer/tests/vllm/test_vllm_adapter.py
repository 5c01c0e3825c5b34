"""Adapters, hot-loaded into a real server of vLLM's."""

import pytest
import torch

from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm.adapters import max_rank
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.engine import VllmEngine
from mixharness_trainer.lora import Lora
from mixharness_trainer.policy import Policy

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.anyio]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, old_folder):
    """Two adapters, and for each the whole model that it makes."""
    made = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp(f"adapter-{seed}")
        torch.manual_seed(seed)
        policy = Policy.load(old_folder, lr=0.0, device="cpu", lora=Lora(rank=4, alpha=16.0))
        for parameter in policy.trained:
            torch.nn.init.normal_(parameter, std=0.2)
        policy.save_adapter(folder / "adapter")
        policy.save(folder / "merged")
        made.append((folder / "adapter", folder / "merged"))
    return made


async def test_each_version_samples_with_its_own_adapter(
    old_folder, new_folder, adapters, server_python, request_of, differences
):
    config = VllmConfig(
        model=str(old_folder), python=server_python, sync="adapter", lora_rank=4, cache_mb=64
    )
    engine = VllmEngine(config)
    assert engine.takes_adapters
    await engine.start()
    try:
        found = [await engine.generate(request_of("0", temperature=0.7, max_tokens=60))]
        for version, (adapter, _) in enumerate(adapters, start=1):
            await engine.load_weights(adapter, version)
            request = request_of(str(version), temperature=0.7, max_tokens=60)
            found.append(await engine.generate(request))
        with pytest.raises(EngineError, match="none of 1 living"):
            await engine.load_weights(new_folder, 3)  # whole weights
    finally:
        await engine.stop()
    folders = [old_folder, *(merged for _, merged in adapters)]
    for version, (folder, generation) in enumerate(zip(folders, found, strict=True)):
        assert {span.version for span in generation.versions} == {version}
        assert differences(folder, generation, 0.7).abs().max() <= 1e-3
    # The same prompt under the next adapter: cached keys of the one before are not used.
    assert differences(folders[1], found[2], 0.7).abs().max() > 0.1


def test_adapters_need_a_rank_that_vllm_takes(old_folder):
    ranks = [max_rank(VllmConfig(sync="adapter", lora_rank=rank)) for rank in (1, 8, 9, 300)]
    assert ranks == [8, 8, 16, 320]
    for rank, said in ((0, "needs lora_rank"), (513, "more than vLLM takes")):
        with pytest.raises(EngineError, match=said):
            max_rank(VllmConfig(sync="adapter", lora_rank=rank))
