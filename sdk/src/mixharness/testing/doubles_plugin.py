"""The doubles as a plugin: `load_plugins(doubles_plugin)`. It is no entry point."""

from __future__ import annotations

from mixharness.hookspecs import hookimpl
from mixharness.testing.doubles import EchoHarness, FixedVerifier, MemoryTracker


@hookimpl
def register_harnesses() -> list[type[EchoHarness]]:
    """Return `echo`."""
    return [EchoHarness]


@hookimpl
def register_verifiers() -> list[type[FixedVerifier]]:
    """Return `fixed`."""
    return [FixedVerifier]


@hookimpl
def register_trackers() -> list[type[MemoryTracker]]:
    """Return `memory`."""
    return [MemoryTracker]
