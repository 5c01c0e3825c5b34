"""Contracts of task sources and verifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from mixharness.sandbox import Workspace
from mixharness.task_source import TaskSource
from mixharness.testing.contracts.component import ComponentContract
from mixharness.types import GroupKey, Rollout, Task
from mixharness.verifier import Verifier


class TaskSourceContract(ComponentContract):
    """A task source yields the same sound tasks every time."""

    def test_there_are_tasks_with_ids_of_their_own(self, component: TaskSource[Any]) -> None:
        """Rollouts are grouped by task id."""
        ids = [task.id for task in component.tasks()]
        assert ids
        assert len(set(ids)) == len(ids)

    def test_two_passes_are_equal(self, component: TaskSource[Any]) -> None:
        """A resumed run sees the tasks of the first."""
        again = type(component)(component.config)
        first = list(component.tasks())
        assert first == list(component.tasks()) == list(again.tasks())

    def test_tasks_survive_json(self, component: TaskSource[Any]) -> None:
        """A task can be stored."""
        json = TypeAdapter(Task)
        for task in component.tasks():
            assert json.validate_json(json.dump_json(task)) == task

    def test_no_answer_stands_in_the_sandbox(self, component: TaskSource[Any]) -> None:
        """Files stay inside the workspace."""
        for task in component.tasks():
            assert not [f for f in task.files if f.startswith("/") or ".." in Path(f).parts]


class VerifierContract(ComponentContract):
    """A verifier tells a solved workspace from an untouched one, and repeats itself.

    A subclass also gives the fixtures `task` and `solution`.
    """

    @pytest.fixture
    def task(self) -> Task:
        """Return a task that this verifier grades; to be overridden."""
        raise NotImplementedError("override the fixture `task`")

    @pytest.fixture
    def solution(self) -> dict[str, str]:
        """Return the files that solve the task; to be overridden."""
        raise NotImplementedError("override the fixture `solution`")

    async def _score(
        self, verifier: Verifier[Any], task: Task, folder: Path, files: dict[str, str]
    ) -> float:
        for name, text in {**task.files, **files}.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        rollout = Rollout(id="contract", key=GroupKey(task.id, "contract"), calls=())
        return (await verifier.score(task, rollout, Workspace(folder))).value

    @pytest.mark.anyio
    async def test_a_solution_beats_an_untouched_workspace(
        self,
        component: Verifier[Any],
        task: Task,
        solution: dict[str, str],
        tmp_path: Path,
    ) -> None:
        """The score says something."""
        await component.validate(task)
        solved = await self._score(component, task, tmp_path / "solved", solution)
        untouched = await self._score(component, task, tmp_path / "untouched", {})
        assert solved > untouched

    @pytest.mark.anyio
    async def test_scoring_twice_agrees(
        self, component: Verifier[Any], task: Task, solution: dict[str, str], tmp_path: Path
    ) -> None:
        """A score depends on the snapshot alone."""
        first = await self._score(component, task, tmp_path / "one", solution)
        assert first == await self._score(component, task, tmp_path / "two", solution)

    @pytest.mark.anyio
    async def test_an_empty_workspace_is_graded(
        self, component: Verifier[Any], task: Task, tmp_path: Path
    ) -> None:
        """An agent may delete everything: a score, no raise."""
        rollout = Rollout(id="contract", key=GroupKey(task.id, "contract"), calls=())
        empty = tmp_path / "empty"
        empty.mkdir()
        assert 0.0 <= (await component.score(task, rollout, Workspace(empty))).value <= 1.0
