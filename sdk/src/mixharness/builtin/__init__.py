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
    """Return `bubblewrap`, `docker` and `local`."""
    from mixharness.builtin.bubblewrap import BubblewrapBackend
    from mixharness.builtin.docker import DockerSandboxBackend
    from mixharness.builtin.local import LocalSandboxBackend

    return [BubblewrapBackend, DockerSandboxBackend, LocalSandboxBackend]


@hookimpl
def register_engines() -> Sequence[type[InferenceEngine[Any]]]:
    """Return `scripted`."""
    from mixharness.builtin.scripted import ScriptedEngine

    return [ScriptedEngine]


@hookimpl
def register_task_sources() -> Sequence[type[TaskSource[Any]]]:
    """Return `clawgym` and `jsonl`."""
    from mixharness.builtin.clawgym import ClawGymTasks
    from mixharness.builtin.jsonl_tasks import JsonlTasks

    return [ClawGymTasks, JsonlTasks]


@hookimpl
def register_verifiers() -> Sequence[type[Verifier[Any]]]:
    """Return `exact_match` and `reward_script`."""
    from mixharness.builtin.exact_match import ExactMatch
    from mixharness.builtin.reward_script import RewardScript

    return [ExactMatch, RewardScript]


@hookimpl
def register_trackers() -> Sequence[type[Tracker[Any]]]:
    """Return `jsonl`."""
    from mixharness.builtin.jsonl_tracker import JsonlTracker

    return [JsonlTracker]
