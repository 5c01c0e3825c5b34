"""What `mixharness engine start` does: vLLM servers on ports, for runs to attach to."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixharness.config import RunConfig
from mixharness.errors import ConfigError, EngineError
from mixharness_trainer.engines.model_folder import model_folder
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.replica import Replica
from mixharness_trainer.engines.vllm.server import Launch
from mixharness_trainer.tables import PolicyTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the servers listen: one port each, counted up."""

    host: str
    port: int


async def serve(config: RunConfig, listen: Listen, ready: Callable[[Sequence[str]], None]) -> None:
    """Launch the servers of a run file, call `ready` with their URLs, and run until cancelled.

    Raises:
        ConfigError: the run file's engine is another, its model is made by the run itself, or a
            server does not start.
    """
    engine = _engine_config(config)
    try:
        model_folder(engine, "vllm")
        async with AsyncExitStack() as stack:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mixharness-vllm-")))
            replicas = [
                Replica(
                    engine,
                    f"http://{listen.host}:{listen.port + number}",
                    lambda: None,  # a run that attaches sends them
                    _launch(engine, number, listen, logs),
                )
                for number in range(engine.replicas)
            ]
            for replica in replicas:
                stack.push_async_callback(replica.stop)
                await replica.start()
            ready([replica.url for replica in replicas])
            await asyncio.gather(*(replica.keep() for replica in replicas))
    except EngineError as exc:
        raise ConfigError(str(config.path), [("engine", str(exc))]) from exc


def _launch(engine: VllmConfig, number: int, listen: Listen, logs: Path) -> Launch:
    bind = ("--host", listen.host, "--port", str(listen.port + number))
    return Launch(config=engine, number=number, bind=bind, log=logs / f"{number}.log")


def _engine_config(config: RunConfig) -> VllmConfig:
    own: Any = config.engine.part_config
    if not isinstance(own, VllmConfig):
        message = f'"{config.engine.name}" has no servers to start; this verb is for "vllm"'
        raise ConfigError(str(config.path), [("engine.name", message)])
    if own.urls:
        message = "`engine start` launches servers; leave `urls` to the runs that attach to them"
        raise ConfigError(str(config.path), [("engine.urls", message)])
    policy: PolicyTable = config.table("policy")  # type: ignore[assignment]
    unset = {"model": policy.model, "context": policy.context, "seed": config.seed}
    filled = {key: value for key, value in unset.items() if key not in own.model_fields_set}
    return own.model_copy(update=filled)
