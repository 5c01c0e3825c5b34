from __future__ import annotations

import re
from pathlib import Path

import pytest

from mixharness import ComponentConfig, GroupKey, Rollout, Task, Workspace
from mixharness_office import verifier
from mixharness_office.tasks import OfficeTasks, OfficeTasksConfig
from mixharness_office.verifier import OfficeVerifier
from mixharness_office.words import NOTE, REGISTER, load_words

README = Path(__file__).parents[1] / "README.md"
TASK = next(OfficeTasks(OfficeTasksConfig(skills=("topic",))).tasks())
FOLDERS = sorted(load_words().skill["topic"].cues)

pytestmark = pytest.mark.anyio


async def grade(path: Path, files: dict[str, str], task: Task = TASK) -> float:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    rollout = Rollout(id="r", key=GroupKey(task.id, "h"), calls=())
    score = await OfficeVerifier(ComponentConfig()).score(task, rollout, Workspace(path))
    return score.value


async def test_the_right_workspace_scores_one(tmp_path: Path) -> None:
    assert await grade(tmp_path, dict(TASK.answer["files"])) == 1.0


async def test_notes_of_a_program_do_not_count(tmp_path: Path) -> None:
    assert await grade(tmp_path, {**TASK.answer["files"], ".config/state": "x"}) == 1.0


async def test_an_untouched_workspace_scores_zero(tmp_path: Path) -> None:
    assert await grade(tmp_path, dict(TASK.files)) == 0.0


async def test_an_empty_workspace_scores_zero(tmp_path: Path) -> None:
    assert await grade(tmp_path, {}) == 0.0


async def test_a_register_with_every_folder_scores_zero(tmp_path: Path) -> None:
    cue = TASK.answer["files"][REGISTER].split()[0]
    lines = "\n".join(f"{cue} {folder}" for folder in FOLDERS)
    assert await grade(tmp_path, {**TASK.files, REGISTER: lines}) == 0.0


async def test_the_folder_without_the_subject_scores_zero(tmp_path: Path) -> None:
    folder = TASK.answer["files"][REGISTER].split()[1]
    assert await grade(tmp_path, {**TASK.files, REGISTER: folder}) == 0.0


async def test_a_lost_note_scores_zero(tmp_path: Path) -> None:
    assert await grade(tmp_path, {REGISTER: TASK.answer["files"][REGISTER]}) == 0.0


async def test_an_emptied_note_scores_zero(tmp_path: Path) -> None:
    assert await grade(tmp_path, {**TASK.answer["files"], NOTE: ""}) == 0.0


async def test_an_extra_file_scores_zero(tmp_path: Path) -> None:
    assert await grade(tmp_path, {**TASK.answer["files"], "notes.txt": "x"}) == 0.0


def test_the_readme_shows_this_verifier() -> None:
    source = Path(verifier.__file__).read_text()
    assert source in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    body = source.split("\n\n\n")[1]
    assert len(body.splitlines()) <= 20
