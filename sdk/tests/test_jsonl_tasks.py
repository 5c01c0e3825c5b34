import json
from pathlib import Path
from typing import Any

import pytest

from mixharness.builtin.jsonl_tasks import JsonlTasks, JsonlTasksConfig
from mixharness.types import Service, Task


def read(at: Path, **keys: Any) -> Task:
    file = at / "tasks.jsonl"
    file.write_text(json.dumps({"id": "a", "prompt": "p", **keys}))
    (task,) = JsonlTasks(JsonlTasksConfig(path=file)).tasks()
    return task


def test_a_line_says_where_and_under_which_limits_its_task_is_done(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    service = {"name": "db", "command": ["db", "-v"], "health": ["ping"], "env": {"A": "b"}}
    task = read(
        tmp_path,
        folder="given",
        workspace="/srv/work",
        image="debian:12",
        services=[service],
        limits={"agent_s": 0.5, "max_turns": 3},
    )
    assert task.folder == tmp_path / "given"
    assert (task.workspace, task.image) == ("/srv/work", "debian:12")
    assert task.services == (
        Service(name="db", command=("db", "-v"), health=("ping",), env={"A": "b"}),
    )
    assert task.limits == {"agent_s": 0.5, "max_turns": 3}
    assert read(tmp_path) == Task(id="a", prompt="p", verifier="exact_match")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"workspace": "work"}, r"workspace: must be an absolute path, got 'work'"),
        ({"folder": "nowhere"}, r"folder: .*nowhere is no folder"),
        ({"services": [{"name": "db", "command": ["db"]}]}, r"services\.0\.health: Field required"),
        ({"limits": {"max_turns": "many"}}, r"limits\.max_turns: .*valid number"),
        ({"limit": {}}, r"limit: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_line_says_where(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"tasks\.jsonl:1: {message}"):
        read(tmp_path, **keys)
