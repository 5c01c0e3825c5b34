"""The embedded engine `hf`: transformers' continuous batching behind `generate`. No training here.

The manager runs in one thread of its own. Requests go to it through its queue; answers come back
with `loop.call_soon_threadsafe`, so nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import structlog
import torch
from pydantic import Field
from transformers import PreTrainedModel
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import GenerationOutput

from mixharness.engine import (
    EngineTokenizer,
    GenerateRequest,
    Generation,
    InferenceEngine,
    Sampling,
    SamplingCancelled,
)
from mixharness.errors import EngineError
from mixharness.types import VersionSpan
from mixharness_trainer.engines import hf_model
from mixharness_trainer.engines.hf_draws import Draws
from mixharness_trainer.engines.model_folder import (
    ModelFolderConfig,
    model_folder,
    read_tokenizer,
)

log = structlog.get_logger()

_STOP_S = 5.0
_WATCH_S = 0.2
_FIRST_REQUEST = GenerateRequest(
    session_id="",
    request_id="start",
    prompt_ids=(0,),
    sampling=Sampling(temperature=1.0, max_tokens=1, stop_ids=()),
)


class HfConfig(ModelFolderConfig):
    """Keys of `[engine] name = "hf"`."""

    device: str = "auto"
    """`auto` takes a GPU when there is one; float32 on a CPU, bfloat16 on a GPU."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of a step. More than one loses where harness programs want the cores too."""
    cache_mb: int = Field(default=256, ge=1)
    """Memory for keys and values, in MiB."""
    page_size: int = Field(default=32, ge=4)
    """Tokens per cache page; prefixes are shared in whole pages."""
    max_batch_tokens: int = Field(default=2048, ge=1)
    """Most tokens in one step, prompts and samples together."""
    max_requests: int = Field(default=64, ge=1)
    """Most requests in one step; the others wait their turn."""
    seed: int = 0
    """Decides, with a request's id and the token's place, how each token is drawn."""


class HfEngine(InferenceEngine[HfConfig]):
    """Samples with transformers' continuous batching; call it from one event loop only."""

    name = "hf"
    config_type = HfConfig

    def __init__(self, config: HfConfig) -> None:
        super().__init__(config)
        self._model: PreTrainedModel | None = None
        self._manager: ContinuousBatchingManager | None = None
        self._draws = Draws(config.seed)
        self._tokenizer: EngineTokenizer | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[GenerationOutput]] = {}
        self._policy_version = 0

    @property
    def tokenizer(self) -> EngineTokenizer:
        """The tokenizer of the model folder.

        Raises:
            EngineError: the engine was not started.
        """
        if self._tokenizer is None:
            raise EngineError("engine hf has no tokenizer before start()")
        return self._tokenizer

    @property
    def policy_version(self) -> int:
        """Number of the weights that sample now."""
        return self._policy_version

    async def start(self) -> None:
        """Load the model, start the sampling thread and sample one token to prove it.

        Raises:
            EngineError: no usable model folder, or a cache smaller than one context.
        """
        await asyncio.to_thread(self._build)
        threads = torch.get_num_threads()
        try:
            # A thread takes torch's thread count, and daemon-ness, from whoever starts it.
            starter = threading.Thread(target=self._start_manager, name="hf-engine", daemon=True)
            starter.start()
            starter.join()
            self._watcher = asyncio.create_task(self._watch())
            await self.generate(_FIRST_REQUEST)
            self._draws.sample_for(self._running_manager())
        finally:
            torch.set_num_threads(threads)
        log.info("engine_started", engine=self.name, model=self.config.model)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion; see `InferenceEngine.generate`.

        A completion never passes the context: it ends there with `length`.

        Raises:
            EngineError: a request that cannot be sampled, or an engine that died or was stopped.
        """
        manager = self._running_manager()
        max_new_tokens = self._checked_max_tokens(request)
        output = await self._submit(manager, request, max_new_tokens)
        if output.error is not None:
            raise EngineError(f"engine hf failed request {request.request_id}: {output.error}")
        return self._generation(request, output)

    async def load_weights(self, source: Path, policy_version: int) -> None:
        """Copy the safetensors of `source` into the running model and forget all cached keys.

        Raises:
            EngineError: requests are still being sampled, or the weights do not fit; then the
                old ones stay.
        """
        manager = self._running_manager()
        if self._waiting:
            raise EngineError(
                f"load_weights with {len(self._waiting)} requests in flight; close the gate first"
            )
        await asyncio.to_thread(self._swap_weights, manager, source, policy_version)
        log.info("weights_loaded", engine=self.name, policy_version=policy_version)

    async def stop(self) -> None:
        """Stop the thread and free the model; whoever still waits gets an EngineError."""
        manager, self._manager, self._model = self._manager, None, None
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        if manager is not None and manager.is_running():
            await asyncio.to_thread(manager.stop, timeout=_STOP_S, hard_stop=True)
        self._fail_waiting("engine hf was stopped")

    def _build(self) -> None:
        folder = model_folder(self.config, self.name)
        device = self.config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        model = hf_model.load_model(folder, device, dtype)
        context = self.config.context or model.config.get_text_config().max_position_embeddings
        self._tokenizer = read_tokenizer(self.config, context)
        self._manager = hf_model.make_manager(model, self._batching(model, context))
        self._draws.join(self._manager)
        self._model = model

    def _batching(self, model: PreTrainedModel, context: int) -> dict[str, Any]:
        capacity = hf_model.cache_tokens(model, self.config.cache_mb)
        if capacity < context:
            raise EngineError(
                f"cache_mb = {self.config.cache_mb} holds {capacity} tokens, less than the context "
                f"of {context}; raise cache_mb or lower context"
            )
        return {
            "page_size": self.config.page_size,
            "num_blocks": capacity // self.config.page_size,
            "max_batch_tokens": self.config.max_batch_tokens,
            "max_requests_per_batch": self.config.max_requests,
            "seed": self.config.seed,
        }

    def _start_manager(self) -> None:
        torch.set_num_threads(self.config.threads)
        with torch.inference_mode():
            self._running_manager().start()

    def _running_manager(self) -> ContinuousBatchingManager:
        if self._manager is None:
            raise EngineError("engine hf is not running")
        return self._manager

    def _checked_max_tokens(self, request: GenerateRequest) -> int:
        """Refuse what would hurt other requests or the contract; return the tokens to sample."""
        sampling, ids, context = request.sampling, request.prompt_ids, self.tokenizer.context
        vocab_size = self._vocab_size()
        if not (math.isfinite(sampling.temperature) and sampling.temperature > 0):
            raise EngineError(f"temperature must be above 0, got {sampling.temperature}")
        if not ids or min(ids) < 0 or max(ids) >= vocab_size:
            raise EngineError(f"a prompt needs token ids in [0, {vocab_size}); none or others came")
        if len(ids) >= context:
            raise EngineError(f"a prompt of {len(ids)} tokens fills the context of {context}")
        if sampling.max_tokens < 1:
            raise EngineError(f"max_tokens must be at least 1, got {sampling.max_tokens}")
        if request.request_id in self._waiting:
            raise EngineError(f"request {request.request_id} is already being sampled")
        return min(sampling.max_tokens, context - len(ids))

    def _vocab_size(self) -> int:
        assert self._model is not None
        return int(self._model.config.get_text_config().vocab_size)

    async def _submit(
        self, manager: ContinuousBatchingManager, request: GenerateRequest, max_new_tokens: int
    ) -> GenerationOutput:
        request_id = request.request_id
        future: asyncio.Future[GenerationOutput] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        manager.register_result_handler(request_id, lambda output: _deliver(future, output))
        try:
            accepted = manager.add_request(
                list(request.prompt_ids),
                request_id=request_id,
                max_new_tokens=max_new_tokens,
                eos_token_id=list(request.sampling.stop_ids),
                temperature=float(request.sampling.temperature),
            )
            if accepted is None:
                raise EngineError(self._death(manager))
            return await future
        except asyncio.CancelledError as exc:
            ids, logprobs = hf_model.sampled_so_far(manager, request_id)
            manager.cancel_request(request_id)
            versions = (VersionSpan(self._policy_version, 0, len(ids)),)
            cut = Generation(
                ids=ids, logprobs=logprobs, versions=versions, finish_reason="cancelled"
            )
            raise SamplingCancelled(cut) from exc
        finally:
            self._waiting.pop(request_id, None)
            manager.output_router.result_handlers.pop(request_id, None)

    def _generation(self, request: GenerateRequest, output: GenerationOutput) -> Generation:
        ids = tuple(output.generated_tokens)
        if len(ids) != len(output.logprobs) or not ids:
            raise EngineError(
                f"engine hf gave {len(ids)} ids and {len(output.logprobs)} log-probs for request "
                f"{request.request_id}; one log-prob for each of at least one id is right"
            )
        return Generation(
            ids=ids,
            logprobs=tuple(output.logprobs),
            versions=(VersionSpan(self._policy_version, 0, len(ids)),),
            finish_reason="stop" if ids[-1] in request.sampling.stop_ids else "length",
        )

    def _swap_weights(
        self, manager: ContinuousBatchingManager, source: Path, policy_version: int
    ) -> None:
        assert self._model is not None
        weights = hf_model.read_weights(self._model, source)
        if not manager.is_running():
            raise EngineError(self._death(manager))
        with manager.pause():
            hf_model.copy_weights(self._model, weights)
            hf_model.drop_cache(manager)
            self._policy_version = policy_version

    async def _watch(self) -> None:
        """Free every waiter when the sampling thread ends for any reason."""
        manager = self._running_manager()
        while manager.is_running():
            await asyncio.sleep(_WATCH_S)
        log.error("engine_died", engine=self.name, error=self._death(manager))
        self._fail_waiting(self._death(manager))

    def _death(self, manager: ContinuousBatchingManager) -> str:
        error = manager.background_thread_status.fatal_error
        return f"engine hf died: {error!r}" if error is not None else "engine hf has stopped"

    def _fail_waiting(self, message: str) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineError(message))


def _deliver(future: asyncio.Future[GenerationOutput], output: GenerationOutput) -> None:
    if not future.done():
        future.set_result(output)
