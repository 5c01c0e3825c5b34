"""What a part of each kind must do: subclass one, give the fixture `component`, inherit."""

from mixharness.testing.contracts.component import ComponentContract
from mixharness.testing.contracts.engine import EngineContract
from mixharness.testing.contracts.harness import HarnessContract
from mixharness.testing.contracts.learning import OptimizerContract
from mixharness.testing.contracts.sandbox import SandboxContract
from mixharness.testing.contracts.tasks import TaskSourceContract, VerifierContract
from mixharness.testing.contracts.tracker import TrackerContract

__all__ = [
    "ComponentContract",
    "EngineContract",
    "HarnessContract",
    "OptimizerContract",
    "SandboxContract",
    "TaskSourceContract",
    "TrackerContract",
    "VerifierContract",
]
