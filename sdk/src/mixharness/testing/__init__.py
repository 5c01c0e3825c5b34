"""For plugin authors: one contract class per kind of part, and doubles. No runtime module uses it.

Names are imported when they are asked for: pytest loads this package at every start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mixharness.builtin.scripted import ScriptedEngine as ScriptedEngine
    from mixharness.testing.contracts import ComponentContract as ComponentContract
    from mixharness.testing.contracts import EngineContract as EngineContract
    from mixharness.testing.contracts import HarnessContract as HarnessContract
    from mixharness.testing.contracts import OptimizerContract as OptimizerContract
    from mixharness.testing.contracts import SandboxContract as SandboxContract
    from mixharness.testing.contracts import TaskSourceContract as TaskSourceContract
    from mixharness.testing.contracts import TrackerContract as TrackerContract
    from mixharness.testing.contracts import VerifierContract as VerifierContract
    from mixharness.testing.doubles import EchoHarness as EchoHarness
    from mixharness.testing.doubles import FixedVerifier as FixedVerifier
    from mixharness.testing.doubles import MemoryTracker as MemoryTracker

pytest.register_assert_rewrite("mixharness.testing.contracts")

_DOUBLES = ("EchoHarness", "FixedVerifier", "MemoryTracker")


def __getattr__(name: str) -> Any:
    if name == "ScriptedEngine":
        place = "mixharness.builtin.scripted"
    elif name.endswith("Contract"):
        place = "mixharness.testing.contracts"
    elif name in _DOUBLES:
        place = "mixharness.testing.doubles"
    else:
        raise AttributeError(name)
    return getattr(importlib.import_module(place), name)
