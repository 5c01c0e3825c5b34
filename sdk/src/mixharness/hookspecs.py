"""The seven hooks. Each is argument-free, synchronous, called once, and returns classes.

A plugin package names a module in the entry-point group `mixharness` and marks its functions with
`mixharness.hookimpl`. A raise in a hook breaks that plugin only: it is reported, and fatal only
when the run file names one of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pluggy

from mixharness.engine import InferenceEngine
from mixharness.harness import Harness
from mixharness.optimizer import Optimizer
from mixharness.sandbox import SandboxBackend
from mixharness.task_source import TaskSource
from mixharness.tracker import Tracker
from mixharness.verifier import Verifier

hookspec = pluggy.HookspecMarker("mixharness")
hookimpl = pluggy.HookimplMarker("mixharness")


@hookspec
def register_harnesses() -> Sequence[type[Harness[Any]]]:  # type: ignore[empty-body]
    """Return agent programs. Run-file table `[[harness]]`."""


@hookspec
def register_verifiers() -> Sequence[type[Verifier[Any]]]:  # type: ignore[empty-body]
    """Return workspace graders. A task names its own; `[[verifier]]` configures or overrides it."""


@hookspec
def register_task_sources() -> Sequence[type[TaskSource[Any]]]:  # type: ignore[empty-body]
    """Return task iterators. Run-file table `[[task_source]]`."""


@hookspec
def register_optimizers() -> Sequence[type[Optimizer[Any]]]:  # type: ignore[empty-body]
    """Return policy optimizers. Run-file table `[optimizer]`."""


@hookspec
def register_sandboxes() -> Sequence[type[SandboxBackend[Any]]]:  # type: ignore[empty-body]
    """Return places to run a harness in. Run-file table `[sandbox]`."""


@hookspec
def register_engines() -> Sequence[type[InferenceEngine[Any]]]:  # type: ignore[empty-body]
    """Return inference engines. Run-file table `[engine]`."""


@hookspec
def register_trackers() -> Sequence[type[Tracker[Any]]]:  # type: ignore[empty-body]
    """Return metric sinks. Run-file table `[[tracker]]`."""
