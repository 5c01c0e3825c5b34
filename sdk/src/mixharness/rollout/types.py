"""What the rollout room is asked for, and how it is set up. It runs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import xxhash

from mixharness.harness import Harness, Program
from mixharness.limits import overridden
from mixharness.proxy.app import Proxy
from mixharness.rollout.store import RunStore
from mixharness.sandbox import SandboxBackend
from mixharness.types import GroupKey, Limits, Task
from mixharness.verifier import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSlot:
    """One `[[harness]]` entry of a run, ready to be used."""

    label: str
    harness: Harness[Any]
    program: Program | None
    """None for a harness without a program of its own."""
    limits: Limits
    weight: float = 1.0
    """Share of a training step's groups, relative to the other slots."""
    groups: int | None = None
    """Fixed number of groups per training step, in place of a share."""

    @property
    def trained(self) -> bool:
        """Say whether the run trains in this harness; it evaluates in all."""
        return self.weight > 0 and self.groups != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One attempt at a task in a harness; equal fields give the same id in every run."""

    task: Task
    slot: HarnessSlot
    sample: int
    """Number within its group, from 0."""
    stage: str
    """What it is for, e.g. `step-0003` or `eval-before`; part of the id."""
    refill: int = 0
    """Round in which it was drawn in place of excluded rollouts; 0: from the beginning."""

    @property
    def limits(self) -> Limits:
        """Return the slot's limits with the task's own in their place."""
        return overridden(self.slot.limits, self.task.limits)

    @property
    def key(self) -> GroupKey:
        """Return the pair it is compared within (rule 5)."""
        return GroupKey(self.task.id, self.slot.label)

    @property
    def id(self) -> str:
        """Return a name that is safe in files and addresses, and unique in a run."""
        plain = f"{self.stage}-{self.task.id}-{self.slot.label}-{self.sample}"
        safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", plain)[:160].lstrip(".")
        # A changed name could meet another one: the hash of the plain one keeps them apart.
        return safe if safe == plain else f"{safe}-{xxhash.xxh64_hexdigest(plain.encode())[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """How rollouts are run, beyond what a harness slot says."""

    max_infra_retries: int = 2
    """Fresh attempts after an infrastructure failure, and gradings where a sandbox fails."""
    max_refills: int = 1
    """Rounds of fresh rollouts in place of those that ended excluded."""
    backoff_s: float = 0.5
    """Wait before the first retry; doubles each time."""
    on_limit: Literal["score", "zero"] = "score"
    """What a policy failure is worth: what the workspace earns, or 0."""
    settle_checks: int = 3
    """Equal looks at the records in a row after which they are complete."""
    settle_interval_s: float = 0.02
    settle_limit_s: float = 15.0
    grade_limit_s: float = 120.0
    """Longest time one call of a verifier may take, its sandbox's start included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The parts that every rollout of a run uses. It owns none of them."""

    proxy: Proxy
    sandbox: SandboxBackend[Any]
    verifiers: Mapping[str, Verifier[Any]]
    """By the name that tasks use."""
    store: RunStore
    settings: RunnerSettings = RunnerSettings()
