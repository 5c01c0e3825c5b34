"""The engine `vllm`: requests to replicas by session, new weights to all.

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
from mixharness_trainer.engines.vllm.client import ServerLost
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.replica import Replica, State
from mixharness_trainer.engines.vllm.server import Launch
from mixharness_trainer.engines.vllm.sync import Weights, check_fit, tensor_shapes
from mixharness_trainer.lora_files import is_adapter

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

    @property
    def takes_adapters(self) -> bool:
        """Whether servers are given the adapter and keep their weights."""
        return self.config.sync == "adapter"

    async def start(self) -> None:
        """Launch the servers, or attach to them, and wait until all have the model's weights.

        Raises:
            EngineError: no usable model folder, or a server that does not get ready; with the end
                of its log.
        """
        model = model_folder(self.config, self.name).resolve()
        self._target = Weights(model, 0)
        self._shapes = tensor_shapes(model)
        self._folder = Path(tempfile.mkdtemp(prefix="mixharness-vllm-"))
        self._replicas = [self._replica(number) for number in range(self.config.num_servers)]
        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(replica.start())
        except ExceptionGroup as errors:
            await self.stop()
            raise errors.exceptions[0] from None
        contexts = [await replica.client.context() for replica in self._replicas]
        self._tokenizer = read_tokenizer(self.config, min(contexts))
        self._keepers = [asyncio.create_task(replica.keep()) for replica in self._replicas]
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
        weights = Weights(source.resolve(), policy_version)
        if not is_adapter(weights.folder):
            await asyncio.to_thread(check_fit, weights.folder, self._shapes)
        async with self._updating:
            before, self._target = self._target, weights
            alive = [replica for replica in self._replicas if replica.state is State.ALIVE]
            taken = await asyncio.gather(*(replica.load(weights) for replica in alive))
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
        await asyncio.gather(*(replica.stop() for replica in self._replicas))
        self._replicas = []
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _replica(self, number: int) -> Replica:
        """Make the replica that attaches to a URL, or launches a server.

        A launched one listens at a socket in a private folder: no sandbox reaches the routes that
        change weights.
        """
        config, folder = self.config, self._folder
        assert folder is not None
        if config.urls:
            return Replica(config, config.urls[number], lambda: self._target)
        path = folder / f"{number}.sock"
        launch = Launch(
            config=config, number=number, bind=("--uds", str(path)), log=folder / f"{number}.log"
        )
        return Replica(config, f"unix:{path}", lambda: self._target, launch)

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


def _hash(session_id: str, number: int) -> bytes:
    return hashlib.blake2b(f"{session_id} {number}".encode(), digest_size=8).digest()
