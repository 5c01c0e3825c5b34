"""Hands new weights to the engine through the gate (rule 9). Checkpoints are checkpoint.py's."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import structlog

from mixharness.engine import InferenceEngine
from mixharness.errors import EngineError, boundary
from mixharness.proxy.gate import Gate
from mixharness_trainer.policy import Policy

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where the weights are saved, and what the engine's taking them cost."""

    folder: Path
    seconds: float
    num_bytes: int
    """Of the safetensors files: what each replica of the engine took."""


async def publish(
    policy: Policy, engine: InferenceEngine[Any], gate: Gate, folder: Path, *, version: int
) -> Published:
    """Give the engine the policy's weights as number `version`.

    They are written to `folder/<version>` while requests still run; then requests are held, the
    engine loads, and the older saved weights go. On a raise the engine keeps the older ones. Of a
    policy with adapters an engine that takes them gets them alone.

    Raises:
        EngineError: the engine did not take them.
    """
    target = folder / f"{version:06d}"
    alone = policy.lora is not None and engine.takes_adapters
    await anyio.to_thread.run_sync(policy.save_adapter if alone else policy.save, target)
    async with gate.closed(drain=not engine.updates_in_flight):
        began = time.monotonic()
        with boundary(EngineError, f"engine {engine.name!r}"):
            await engine.load_weights(target, version)
        seconds = round(time.monotonic() - began, 3)
    policy.version = version
    for older in folder.iterdir():
        if older != target:
            shutil.rmtree(older)
    num_bytes = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    log.info("weights_published", policy_version=version, seconds=seconds, num_bytes=num_bytes)
    return Published(folder=target, seconds=seconds, num_bytes=num_bytes)
