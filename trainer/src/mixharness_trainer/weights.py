"""Hands new weights to the engine through the gate (rule 9). Checkpoints are checkpoint.py's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import structlog

from mixharness.engine import InferenceEngine
from mixharness.errors import EngineError, boundary
from mixharness.proxy.gate import Gate
from mixharness_trainer.policy import Policy

log = structlog.get_logger()


async def publish(
    policy: Policy, engine: InferenceEngine[Any], gate: Gate, folder: Path, *, version: int
) -> Path:
    """Give the engine the policy's weights as number `version`; return where they are saved.

    They are written to `folder/<version>` while requests still run; then requests are held, the
    engine loads, and the older saved weights go. On a raise the engine keeps the older ones.

    Raises:
        EngineError: the engine did not take them.
    """
    target = folder / f"{version:06d}"
    await anyio.to_thread.run_sync(policy.save, target)
    async with gate.closed(drain=not engine.updates_in_flight):
        with boundary(EngineError, f"engine {engine.name!r}"):
            await engine.load_weights(target, version)
    policy.version = version
    for older in folder.iterdir():
        if older != target:
            shutil.rmtree(older)
    log.info("weights_published", policy_version=version)
    return target
