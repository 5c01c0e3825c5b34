"""One replica of the engine `vllm`: its server, whether it lives, and which weights it has.

Which replica samples a request is engine.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import structlog

from mixharness.engine import GenerateRequest, Generation, SamplingCancelled
from mixharness.errors import EngineError, boundary
from mixharness.types import VersionSpan
from mixharness_trainer.engines.vllm.adapters import Adapters
from mixharness_trainer.engines.vllm.client import ServerLost, VllmClient
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.server import Launch, VllmServer
from mixharness_trainer.engines.vllm.sync import Sender, Weights, connect

log = structlog.get_logger()

_CHECK_S = 2.0
_CHECKS = 3
"""Health checks in a row that a living process may fail."""
_STARTS = 3
"""Starts in a row that a replica may fail."""
_ABORT_S = 0.8
_POLL_S = 0.2
_SAY_S = 10.0


class State(Enum):
    """Whether a replica samples, will, or will not."""

    STARTING = "starting"
    ALIVE = "alive"
    DEAD = "dead"


class Replica:
    """A server that samples.

    Args:
        config: says how weights reach it, and how long it may take to get ready.
        url: where it answers.
        target: returns the weights that it is to have; None leaves it as it is.
        launch: how to launch it; None for a server of somebody else's.
    """

    def __init__(
        self,
        config: VllmConfig,
        url: str,
        target: Callable[[], Weights | None],
        launch: Launch | None = None,
    ) -> None:
        self.url = url
        self.state = State.STARTING
        self.client = VllmClient(url)
        self._config, self._target, self._launch = config, target, launch
        self._server: VllmServer | None = None
        self._sender: Sender | None = None
        self._adapters: Adapters | None = None
        self._has: Weights | None = None
        self._sampling: set[asyncio.Task[Generation]] = set()

    @property
    def sampling(self) -> int:
        """Return the number of requests that are being sampled."""
        return len(self._sampling)

    async def generate(self, request: GenerateRequest, max_tokens: int) -> Generation:
        """Sample; a cancelled await frees the server within a second.

        Raises:
            ServerLost: the server died, maybe while it sampled.
            SamplingCancelled: cancelled, with what was sampled so far.
            EngineError: the server refused.
        """
        task = asyncio.create_task(self._sample(request, max_tokens))
        self._sampling.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cut = await self._cut(task, request.request_id)
            if cut is None:
                raise
            raise SamplingCancelled(replace(cut, finish_reason="cancelled")) from exc
        finally:
            self._sampling.discard(task)
        if task.cancelled():
            raise ServerLost(f"vLLM at {self.url} was given up")
        generation = task.result()
        if generation.finish_reason == "cancelled":
            raise EngineError(f"somebody aborted request {request.request_id} in vLLM")
        return generation

    async def start(self) -> None:
        """Get ready with the target's weights: launch if it is ours, wait, connect, load.

        Raises:
            EngineError: it does not get ready; the message has the end of its log.
        """
        await self._release()
        if self._launch is not None:
            self._server = await VllmServer.launch(self._launch)
        await self._wait_ready()
        with boundary(EngineError, f"vLLM at {self.url} takes no weights"):
            while (target := self._target()) and target is not self._has:
                await self._load(target)  # newer ones may come meanwhile
        self.state = State.ALIVE

    async def load(self, weights: Weights) -> bool:
        """Take new weights; say whether it did. If not, it is lost, and started anew."""
        try:
            with boundary(EngineError, f"vLLM at {self.url}"):
                await self._load(weights)
        except EngineError as exc:
            log.error("weights_not_taken", engine="vllm", url=self.url, error=str(exc))
            self.lose()
            return False
        return True

    def lose(self) -> None:
        """Stop using it; who waits for it asks another one.

        A server of our own will be started anew; nobody knows when another one comes back.
        """
        if self.state is State.ALIVE:
            self.state = State.DEAD if self._launch is None else State.STARTING
        for task in self._sampling:
            task.cancel()

    async def keep(self) -> None:
        """Watch it for ever, and start it anew when it dies or hangs."""
        failed = 0
        while failed < _STARTS or self._launch is None:
            await self._until_lost()
            self.lose()
            log.warning("replica_lost", engine="vllm", url=self.url, log=self._tail())
            try:
                await self.start()
                failed = 0
                log.info("replica_restarted", engine="vllm", url=self.url)
            except EngineError as exc:
                failed += 1
                log.error("replica_not_restarted", engine="vllm", url=self.url, error=str(exc))
                await asyncio.sleep(_CHECK_S)
        self.state = State.DEAD

    async def stop(self) -> None:
        """End what was launched; leave what was not."""
        self.state = State.DEAD
        self.lose()
        await self._release()
        await self.client.close()

    async def _sample(self, request: GenerateRequest, max_tokens: int) -> Generation:
        if self._adapters is None or self._has is None:
            return await self.client.sample(request, max_tokens)
        version = self._has.version
        found = await self.client.sample(request, max_tokens, self._adapters.model)
        return replace(found, versions=(VersionSpan(version, 0, len(found.ids)),))

    async def _load(self, weights: Weights) -> None:
        """Have the server sample with these weights; see `_load_whole` and `Adapters`."""
        began = time.monotonic()
        if self._config.sync != "adapter":
            await self._load_whole(weights)
        else:
            if self._adapters is None:
                self._adapters = Adapters(self.client)
                # A number says that the server has not started anew since.
                await self.client.post("/update_weight_version", {"new_version": "0"})
            await self._adapters.load(weights)
        self._has = weights
        log.info(
            "weights_sent",
            engine="vllm",
            url=self.url,
            policy_version=weights.version,
            num_bytes=weights.num_bytes,
            seconds=round(time.monotonic() - began, 3),
        )

    async def _load_whole(self, weights: Weights) -> None:
        """Pause, move the weights, number them, forget all cached keys, and go on.

        What is being sampled stays and goes on with the new weights; its keys are computed anew.
        """
        if self._sender is None:
            self._sender = await connect(self.client, self._config.sync)
        await self.client.post("/pause", params={"mode": "keep"})
        await self._sender.send(weights.folder)
        await self.client.post("/update_weight_version", {"new_version": str(weights.version)})
        reset = await self.client.post(
            "/reset_prefix_cache", params={"reset_running_requests": "true"}
        )
        if not reset.get("success"):
            raise EngineError(f"it keeps keys of older weights: {reset}")
        await self.client.post("/resume")

    async def _cut(self, task: asyncio.Task[Generation], request_id: str) -> Generation | None:
        """End a request, and return what was sampled so far if the server still tells."""
        try:
            async with asyncio.timeout(_ABORT_S):
                await self.client.abort(request_id)
                return await task
        except (TimeoutError, EngineError):
            return None
        finally:
            task.cancel()  # closes the connection, which ends the request too

    async def _until_lost(self) -> None:
        failed = 0
        while self.state is State.ALIVE and failed < _CHECKS:
            await asyncio.sleep(_CHECK_S)
            if self._server is not None and self._server.status is not None:
                return
            failed = 0 if await self.client.healthy() else failed + 1

    async def _wait_ready(self) -> None:
        began = said = time.monotonic()
        while not await self.client.healthy():
            now = time.monotonic()
            if self._server is not None and self._server.status is not None:
                raise EngineError(
                    f"vLLM ended with status {self._server.status} before it was ready; its last "
                    f"words:\n{self._tail()}"
                )
            if now - began > self._config.start_limit_s:
                raise EngineError(
                    f"vLLM at {self.url} was not ready after {self._config.start_limit_s:g} s\n"
                    f"{self._tail()}"
                )
            if now - said > _SAY_S:
                said, last = now, self._tail().rpartition("\n")[2]
                log.info("replica_starting", url=self.url, after_s=round(now - began), last=last)
            await asyncio.sleep(_POLL_S)

    def _tail(self) -> str:
        return "" if self._server is None else self._server.tail()

    async def _release(self) -> None:
        sender, self._sender, self._has, self._adapters = self._sender, None, None, None
        server, self._server = self._server, None
        if sender is not None:
            with contextlib.suppress(Exception):  # the other end may be gone
                await sender.close()
        if server is not None:
            await server.stop()
