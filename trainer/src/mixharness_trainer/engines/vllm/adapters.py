"""Hot-loading of adapters into one vLLM server, whose own weights never change.

Requests name the adapter as their model, so that each is sampled by one version to its end; cached
keys of one adapter are never another's.
"""

from __future__ import annotations

import secrets

from mixharness.errors import EngineError
from mixharness_trainer.engines.vllm.client import BASE_MODEL, VllmClient
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.sync import Weights
from mixharness_trainer.lora_files import is_adapter

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for `--max-lora-rank`."""


class Adapters:
    """The one adapter of ours that a server has, if any."""

    def __init__(self, client: VllmClient) -> None:
        self._client = client
        self._prefix = f"policy-{secrets.token_hex(4)}"  # a server may have another run's
        self.model = BASE_MODEL
        """What requests are to name."""

    async def load(self, weights: Weights) -> None:
        """Load an adapter, or go back to the server's own weights, and drop the one before.

        Raises:
            EngineError: the server does not take it, or the folder holds whole weights.
        """
        before, self.model = self.model, await self._loaded(weights)
        if before != BASE_MODEL:
            await self._client.post("/v1/unload_lora_adapter", {"lora_name": before})

    async def _loaded(self, weights: Weights) -> str:
        if weights.version == 0:
            return BASE_MODEL
        if not is_adapter(weights.folder):
            raise EngineError(
                f"{weights.folder} holds whole weights, but sync is `adapter`; set lora_rank in "
                "[policy], or another sync"
            )
        name = f"{self._prefix}-{weights.version}"
        body = {"lora_name": name, "lora_path": str(weights.folder)}
        await self._client.post("/v1/load_lora_adapter", body)
        return name


def max_rank(config: VllmConfig) -> int:
    """Return the least rank to announce to vLLM for the run's adapters.

    Raises:
        EngineError: the run trains none, or of a higher rank than vLLM takes.
    """
    if not config.lora_rank:
        raise EngineError('engine vllm: sync = "adapter" needs lora_rank in [policy]')
    for rank in RANKS:
        if config.lora_rank <= rank:
            return rank
    raise EngineError(f"lora_rank = {config.lora_rank} is more than vLLM takes, {RANKS[-1]}")
