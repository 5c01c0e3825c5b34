"""The `clawgym` task source: what a folder becomes, and everything wrong with one at once."""

import json
import shutil
from pathlib import Path

import pytest

from mixharness.builtin.clawgym import ClawGymConfig, ClawGymTasks
from mixharness.cli.main import run
from mixharness.plugins import load_plugins
from mixharness.rollout.store import RunStore
from mixharness.testing import TaskSourceContract, doubles_plugin
from mixharness.types import Task

TASKS = Path(__file__).parents[2] / "tests/fixtures/clawgym"


def read(path: Path) -> dict[str, Task]:
    return {task.id: task for task in ClawGymTasks(ClawGymConfig(path=path)).tasks()}


def problems(path: Path) -> list[str]:
    with pytest.raises(ExceptionGroup) as info:
        read(path)
    return [str(error) for error in info.value.exceptions]


class TestContract(TaskSourceContract):
    @pytest.fixture
    def component(self) -> ClawGymTasks:
        return ClawGymTasks(ClawGymConfig(path=TASKS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(TASKS, tmp_path / "tasks")


def test_a_folder_of_tasks() -> None:
    tasks = read(TASKS)
    assert list(tasks) == ["chat_reply", "csv_summary", "word_count"]
    summary = tasks["csv_summary"]
    assert summary.prompt.startswith("Sum up input/sales.csv")
    assert summary.folder == TASKS / "csv_summary/input_files"
    assert summary.workspace == "/root/.openclaw/workspace"
    assert summary.metadata == {"category": "data", "grading_type": "automated"}
    assert (summary.verifier, summary.files) == ("reward_script", {})
    assert len(ClawGymTasks(ClawGymConfig(path=TASKS))) == 3


def test_the_answer_key_is_no_part_of_the_workspace() -> None:
    for task in read(TASKS).values():
        reward = Path(task.answer["reward"])
        assert (reward / "check.py").is_file()
        assert task.folder is None or task.folder not in reward.parents


def test_a_task_without_input_files_has_the_default_workspace() -> None:
    chat = read(TASKS)["chat_reply"]
    assert (chat.folder, chat.workspace) == (None, "/root/.openclaw/workspace")


def test_one_task_folder_is_a_source_too() -> None:
    assert list(read(TASKS / "word_count")) == ["word_count"]


def test_the_entry_says_where_the_workspace_is(folder: Path) -> None:
    file = folder / "word_count/data_entry.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"input_mount_dir": "/srv/work/"}))
    assert read(folder)["word_count"].workspace == "/srv/work"


def test_everything_wrong_is_said_at_once(folder: Path) -> None:
    (folder / "chat_reply/data_entry.json").write_text('{"task_id": "csv_summary", ')
    (folder / "csv_summary/reward/reward.sh").unlink()
    shutil.copytree(folder / "word_count", folder / "word_count_2")
    entry = {"task_id": "", "input_mount_dir": "work/../..", "user_qerry": "?"}
    shutil.copytree(folder / "word_count", folder / "x")
    (folder / "x/data_entry.json").write_text(json.dumps(entry))
    (folder / "y").mkdir()
    keys = "the keys are task_id, user_query, input_mount_dir, metadata"
    found = problems(folder)
    assert found[0].startswith(f"{folder}/chat_reply/data_entry.json: Invalid JSON: ")
    assert found[1:] == [
        f"{folder}/csv_summary/reward/reward.sh: missing; it prints the score",
        f"{folder}/word_count_2/data_entry.json: task_id 'word_count' is that of "
        f"{folder}/word_count/data_entry.json too; ids must be unique",
        f"{folder}/x/data_entry.json: task_id: String should have at least 1 character",
        f"{folder}/x/data_entry.json: user_query: required; {keys}",
        f"{folder}/x/data_entry.json: input_mount_dir: 'work/../..' must be an absolute path "
        "below / without '..'",
        f"{folder}/x/data_entry.json: user_qerry: unknown key; {keys}",
        f"{folder}/y/reward/reward.sh: missing; it prints the score",
        f"{folder}/y/data_entry.json: missing; every task folder has one",
    ]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a folder of task folders: No such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no task folder, which is one with a data_entry\.json"):
        read(tmp_path)


@pytest.mark.docker
def test_tasks_run_and_are_graded_in_containers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    script = """
    [ "$0" = /root/.openclaw/workspace/reward/reward.sh ] || exit 3
    [ "$(cat /root/.openclaw/workspace/answer.txt)" = Paris ] && [ "$PWD" = "$HOME" ] && echo 0.25
    """
    (folder / "word_count/reward/reward.sh").write_text(script)
    options = ["--tasks", "clawgym:tasks", "--harness", "echo", "--sandbox", "docker"]
    options += ["--engine", "scripted", "--set", 'engine.turns=["Paris"]']
    assert run(["rollout", *options], load_plugins(doubles_plugin, installed=False)) == 0
    assert "sandbox_start" not in capsys.readouterr().out
    store = RunStore(Path("runs/rollout"))
    rollouts = [store.load(rollout_id) for rollout_id in store.finished()]
    assert {rollout.key.task_id: rollout.reward for rollout in rollouts} == {
        "chat_reply": 1.0,
        "csv_summary": 0.0,
        "word_count": 0.25,
    }
    workspace = store.path("rollout-csv_summary-echo-0") / "workspace"
    assert sorted(path.name for path in workspace.iterdir()) == ["answer.txt", "input", "run.sh"]
    assert (workspace / "run.sh").stat().st_mode & 0o100
