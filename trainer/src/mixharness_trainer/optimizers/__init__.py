"""Policy optimizers as components. Torch is imported when a loss is taken, not before."""

from mixharness_trainer.optimizers.grpo import Grpo, GrpoConfig
from mixharness_trainer.optimizers.ppo import Ppo, PpoConfig
from mixharness_trainer.optimizers.sft import Sft, SftConfig

__all__ = ["Grpo", "GrpoConfig", "Ppo", "PpoConfig", "Sft", "SftConfig"]
