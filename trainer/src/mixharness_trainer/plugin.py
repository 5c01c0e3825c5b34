"""What the trainer registers: its engines and its optimizers. torch is imported only when asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixharness.engine import InferenceEngine
from mixharness.hookspecs import hookimpl
from mixharness.optimizer import Optimizer


@hookimpl
def register_engines() -> Sequence[type[InferenceEngine[Any]]]:
    """Return `hf` and `vllm`."""
    from mixharness_trainer.engines.hf import HfEngine
    from mixharness_trainer.engines.vllm.engine import VllmEngine

    return [HfEngine, VllmEngine]


@hookimpl
def register_optimizers() -> Sequence[type[Optimizer[Any]]]:
    """Return `grpo`, `ppo` and `sft`."""
    from mixharness_trainer.optimizers.grpo import Grpo
    from mixharness_trainer.optimizers.ppo import Ppo
    from mixharness_trainer.optimizers.sft import Sft

    return [Grpo, Ppo, Sft]
