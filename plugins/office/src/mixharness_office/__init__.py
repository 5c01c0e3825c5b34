"""The plugin `office`: small office tasks and their verifier. Only the hooks live here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixharness import TaskSource, Verifier, hookimpl


@hookimpl
def register_task_sources() -> Sequence[type[TaskSource[Any]]]:
    """Return the generator of office tasks."""
    from mixharness_office.tasks import OfficeTasks

    return [OfficeTasks]


@hookimpl
def register_verifiers() -> Sequence[type[Verifier[Any]]]:
    """Return the graders of office tasks: all or nothing, and with part marks."""
    from mixharness_office.partial import OfficePartialVerifier
    from mixharness_office.verifier import OfficeVerifier

    return [OfficeVerifier, OfficePartialVerifier]
