"""pytest fixtures for plugin authors. They import the SDK inside, so that coverage starts first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mixharness import Sandbox, Task


@pytest.fixture
def task() -> Task:
    """A task with one file that the `exact_match` verifier can grade."""
    from mixharness import Task

    return Task(
        id="greet",
        prompt="Read name.txt and write the name into answer.txt.",
        verifier="exact_match",
        files={"name.txt": "Ada\n"},
        answer={"text": "Ada"},
    )


@pytest.fixture
async def sandbox(task: Task) -> AsyncIterator[Sandbox]:
    """An open `local` sandbox that holds the files of `task`."""
    from mixharness import Limits, SandboxSpec
    from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig

    spec = SandboxSpec(rollout_id="fixture", files=task.files, limits=Limits())
    async with LocalSandboxBackend(LocalSandboxConfig()).open(spec) as opened:
        yield opened
