"""The engine `vllm`: requests to replicas by session, new weights to all. One server is elsewhere.

vLLM runs in processes of its own; this module imports neither vllm nor torch.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import shutil
import tempfile
from functools import partial
from pathlib import Path

import structlog

from mixharness.engine import EngineTokenizer, GenerateRequest, Generation, InferenceEngine
from mixharness.errors import EngineError
from mixharness_trainer.engines.model_folder import model_folder, read_tokenizer
from mixharness_trainer.engines.vllm_client import ServerLost
from mixharness_trainer.engines.vllm_config import VllmConfig
from mixharness_trainer.engines.vllm_replica import Replica, State
from mixharness_trainer.engines.vllm_server import launch_of
from mixharness_trainer.engines.vllm_transfer import Weights, check_fit, tensor_shapes

log = structlog.get_logger()

_POLL_S = 0.1
MIN_TEMPERATURE = 0.01
"""vLLM samples at this temperature when asked for less."""


class VllmEngine(InferenceEngine[VllmConfig]):
    """Samples in vLLM servers, launched or attached to; call it from one event loop only."""

    name = "vllm"
    config_type = VllmConfig

    def __init__(self, config: VllmConfig) -> None:
        super().__init__(config)
        self._replicas: list[Replica] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._tokenizer: EngineTokenizer | None = None
        self._folder: Path | None = None
        self._target = Weights(Path(), 0)
        self._policy_version = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._updating = asyncio.Lock()

    @property
    def tokenizer(self) -> EngineTokenizer:
        """The tokenizer of the model folder.

        Raises:
            EngineError: the engine was not started.
        """
        if self._tokenizer is None:
            raise EngineError("engine vllm has no tokenizer before start()")
        return self._tokenizer

    @property
    def policy_version(self) -> int:
        """Number of the weights that sample now."""
        return self._policy_version

    @property
    def updates_in_flight(self) -> bool:
        """Whether weights may change under requests that are being sampled."""
        return self.config.on_update == "keep"

    async def start(self) -> None:
        """Launch the servers, or attach to them, and wait until all have the model's weights.

        Raises:
            EngineError: no usable model folder, or a server that does not get ready; with the end
                of its log.
        """
        model = model_folder(self.config, self.name)
        self._target = Weights(model, 0)
        self._shapes = tensor_shapes(model)
        self._folder = Path(tempfile.mkdtemp(prefix="mixharness-vllm-"))
        self._replicas = _replicas(self.config, self._folder)
        limit_s = self.config.start_limit_s
        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(replica.start(self._weights, limit_s))
        except ExceptionGroup as group_of_errors:
            raise group_of_errors.exceptions[0] from None
        contexts = [await replica.client.context() for replica in self._replicas]
        self._tokenizer = read_tokenizer(self.config, min(contexts))
        self._keepers = [
            asyncio.create_task(replica.keep(self._weights, limit_s)) for replica in self._replicas
        ]
        log.info("engine_started", engine=self.name, urls=[r.url for r in self._replicas])

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion in the session's replica; see `InferenceEngine.generate`.

        A completion never passes the context: it ends there with `length`. A request whose server
        dies is sampled by another one; while all start anew it waits.

        Raises:
            EngineError: a request that cannot be sampled, or no replica lives or will.
        """
        max_tokens = self._checked_max_tokens(request)
        while True:
            replica = await self._replica_of(request.session_id)
            try:
                return await replica.generate(request, max_tokens)
            except ServerLost as exc:
                log.warning("request_moved", request=request.request_id, error=str(exc))
                replica.lose()

    async def load_weights(self, source: Path, policy_version: int) -> None:
        """Move the weights of `source` into all servers and forget all cached keys.

        A server that does not take them is started anew with them.

        Raises:
            EngineError: requests are still being sampled (unless `on_update = "keep"`), the
                weights do not fit, or no server took them; then the old ones stay.
        """
        sampling = sum(replica.sampling for replica in self._replicas)
        if sampling and not self.updates_in_flight:
            raise EngineError(
                f"load_weights with {sampling} requests in flight; close the gate first"
            )
        await asyncio.to_thread(check_fit, source, self._shapes)
        async with self._updating:
            before, self._target = self._target, Weights(source, policy_version)
            alive = [replica for replica in self._replicas if replica.state is State.ALIVE]
            taken = await asyncio.gather(*(replica.load(self._target) for replica in alive))
            if not any(taken):
                self._target = before
                raise EngineError(f"none of {len(alive)} living vLLM servers took the weights")
            self._policy_version = policy_version
        log.info("weights_loaded", engine=self.name, policy_version=policy_version)

    async def stop(self) -> None:
        """End what was launched; whoever still waits gets an EngineError."""
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        replicas, self._replicas = self._replicas, []
        await asyncio.gather(*(replica.stop() for replica in replicas))
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _weights(self) -> Weights:
        return self._target

    async def _replica_of(self, session_id: str) -> Replica:
        """Return the living replica whose number and session hash highest.

        So a session stays where its prefix is cached, and only those of a dead replica move.
        """
        while True:
            alive = {n: r for n, r in enumerate(self._replicas) if r.state is State.ALIVE}
            if alive:
                return alive[max(alive, key=partial(_hash, session_id))]
            if all(replica.state is State.DEAD for replica in self._replicas):
                raise EngineError("engine vllm is not running: no server lives")
            await asyncio.sleep(_POLL_S)

    def _checked_max_tokens(self, request: GenerateRequest) -> int:
        """Refuse what vLLM would sample otherwise than asked; return the tokens to sample."""
        sampling, num_prompt = request.sampling, len(request.prompt_ids)
        context = self.tokenizer.context
        temperature = sampling.temperature
        if not (math.isfinite(temperature) and temperature >= MIN_TEMPERATURE):
            raise EngineError(f"temperature must be at least {MIN_TEMPERATURE}, got {temperature}")
        if not num_prompt:
            raise EngineError("a prompt needs token ids; none came")
        if num_prompt >= context:
            raise EngineError(f"a prompt of {num_prompt} tokens fills the context of {context}")
        if sampling.max_tokens < 1:
            raise EngineError(f"max_tokens must be at least 1, got {sampling.max_tokens}")
        return min(sampling.max_tokens, context - num_prompt)


def _replicas(config: VllmConfig, folder: Path) -> list[Replica]:
    """Make the replicas: those attached to, or one per server to launch."""
    if config.urls:
        return [Replica(url, config.sync) for url in config.urls]
    # Sockets in a private folder: no sandbox reaches the routes that change weights.
    sockets = [folder / f"{number}.sock" for number in range(config.replicas)]
    return [
        Replica(
            f"unix:{path}", config.sync, launch_of(config, number, ("--uds", str(path)), folder)
        )
        for number, path in enumerate(sockets)
    ]


def _hash(session_id: str, number: int) -> bytes:
    return hashlib.blake2b(f"{session_id} {number}".encode(), digest_size=8).digest()
