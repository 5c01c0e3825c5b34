"""Our own parts and doubles pass the contracts that strangers' parts have to pass."""

from pathlib import Path

import pytest

from mixharness import Task
from mixharness.builtin.exact_match import ExactMatch, ExactMatchConfig
from mixharness.builtin.jsonl_tasks import JsonlTasks, JsonlTasksConfig
from mixharness.builtin.jsonl_tracker import JsonlTracker, JsonlTrackerConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.testing import (
    EchoHarness,
    EngineContract,
    HarnessContract,
    MemoryTracker,
    TaskSourceContract,
    TrackerContract,
    VerifierContract,
)
from mixharness.testing.doubles import EchoHarnessConfig


class TestScripted(EngineContract):
    @pytest.fixture
    def component(self) -> ScriptedEngine:
        return ScriptedEngine(ScriptedConfig(turns=("Hello there.",)))


class TestEcho(HarnessContract):
    @pytest.fixture
    def component(self) -> EchoHarness:
        return EchoHarness(EchoHarnessConfig(turns=2))


class TestJsonlTracker(TrackerContract):
    @pytest.fixture
    def component(self) -> JsonlTracker:
        return JsonlTracker(JsonlTrackerConfig())

    def test_lines_can_be_read_back(self, component: JsonlTracker, tmp_path: Path) -> None:
        component.start(tmp_path, {})
        component.log({"loss": float("nan"), "harness": {"echo": 0.5}}, 3)
        component.finish()
        text = (tmp_path / "metrics.jsonl").read_text()
        assert text == '{"step":3,"loss":"nan","harness":{"echo":0.5}}\n'


class TestMemoryTracker(TrackerContract):
    @pytest.fixture
    def component(self) -> MemoryTracker:
        return MemoryTracker()


class TestJsonlTasks(TaskSourceContract):
    @pytest.fixture
    def component(self, tmp_path: Path) -> JsonlTasks:
        path = tmp_path / "tasks.jsonl"
        path.write_text(
            '{"id": "a", "prompt": "Write 4.", "answer": {"text": "4"}}\n\n'
            '{"id": "b", "prompt": "Copy.", "files": {"in/x.txt": "y"}, "verifier": "squawk"}\n'
        )
        return JsonlTasks(JsonlTasksConfig(path=path))

    def test_the_verifier_has_a_default(self, component: JsonlTasks) -> None:
        assert [task.verifier for task in component.tasks()] == ["exact_match", "squawk"]
        assert len(component) == 2

    def test_a_bad_line_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        path.write_text('{"id": "a", "prompt": "x"}\n{"id": "b"}\n')
        with pytest.raises(ValueError, match=r"bad\.jsonl:2: prompt: Field required"):
            list(JsonlTasks(JsonlTasksConfig(path=path)).tasks())


class TestExactMatch(VerifierContract):
    @pytest.fixture
    def component(self) -> ExactMatch:
        return ExactMatch(ExactMatchConfig())

    @pytest.fixture
    def task(self) -> Task:
        return Task(id="sum", prompt="Write 4.", verifier="exact_match", answer={"text": "4"})

    @pytest.fixture
    def solution(self) -> dict[str, str]:
        return {"answer.txt": "4\n"}

    @pytest.mark.anyio
    async def test_a_task_without_an_answer_is_refused(self, component: ExactMatch) -> None:
        with pytest.raises(ValueError, match="no answer"):
            await component.validate(Task(id="x", prompt="", verifier="exact_match"))
