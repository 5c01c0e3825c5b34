"""The parts that come with the SDK, registered through the same hooks as strangers'.

Each function imports its parts when it is called, so that importing this package is light.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixharness.engine import InferenceEngine
from mixharness.hookspecs import hookimpl
from mixharness.sandbox import SandboxBackend
from mixharness.task_source import TaskSource
from mixharness.tracker import Tracker
from mixharness.verifier import Verifier


@hookimpl
def register_sandboxes() -> Sequence[type[SandboxBackend[Any]]]:
    """Return `local`."""
    from mixharness.builtin.local import LocalSandboxBackend

    return [LocalSandboxBackend]


@hookimpl
def register_engines() -> Sequence[type[InferenceEngine[Any]]]:
    """Return `scripted`."""
    from mixharness.builtin.scripted import ScriptedEngine

    return [ScriptedEngine]


@hookimpl
def register_task_sources() -> Sequence[type[TaskSource[Any]]]:
    """Return `jsonl`."""
    from mixharness.builtin.jsonl_tasks import JsonlTasks

    return [JsonlTasks]


@hookimpl
def register_verifiers() -> Sequence[type[Verifier[Any]]]:
    """Return `exact_match`."""
    from mixharness.builtin.exact_match import ExactMatch

    return [ExactMatch]


@hookimpl
def register_trackers() -> Sequence[type[Tracker[Any]]]:
    """Return `jsonl`."""
    from mixharness.builtin.jsonl_tracker import JsonlTracker

    return [JsonlTracker]
