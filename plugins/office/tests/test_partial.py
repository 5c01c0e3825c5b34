from __future__ import annotations

from pathlib import Path

import pytest

from mixharness import ComponentConfig, GroupKey, Rollout, Workspace
from mixharness_office.partial import OfficePartialVerifier
from mixharness_office.tasks import OfficeTasks, OfficeTasksConfig
from mixharness_office.words import NOTE, REGISTER, load_words

TASK = next(OfficeTasks(OfficeTasksConfig(skills=("topic",))).tasks())
CUE, FOLDER = TASK.answer["files"][REGISTER].split()
OTHER = next(folder for folder in load_words().skill["topic"].cues if folder != FOLDER)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("register", "note", "thirds"),
    [
        (f"{CUE} {FOLDER}", TASK.files[NOTE], 3),
        (f"{CUE} {OTHER}", TASK.files[NOTE], 2),
        (f"nothing {FOLDER}", TASK.files[NOTE], 2),
        (f"nothing {OTHER}", TASK.files[NOTE], 1),
        (CUE, TASK.files[NOTE], 1),
        (f"{CUE} {FOLDER}", "gone", 2),
        (None, TASK.files[NOTE], 0),
    ],
)
async def test_each_thing_that_is_right_earns_a_third(
    tmp_path: Path, register: str | None, note: str, thirds: int
) -> None:
    (tmp_path / NOTE).write_text(note)
    if register is not None:
        (tmp_path / REGISTER).write_text(register)
    rollout = Rollout(id="r", key=GroupKey(TASK.id, "h"), calls=())
    verifier = OfficePartialVerifier(ComponentConfig())
    score = await verifier.score(TASK, rollout, Workspace(tmp_path))
    assert score.value == pytest.approx(thirds / 3)


@pytest.mark.anyio
async def test_a_line_for_every_folder_earns_nothing(tmp_path: Path) -> None:
    (tmp_path / NOTE).write_text(TASK.files[NOTE])
    lines = "\n".join(f"{CUE} {folder}" for folder in load_words().skill["topic"].cues)
    (tmp_path / REGISTER).write_text(lines)
    rollout = Rollout(id="r", key=GroupKey(TASK.id, "h"), calls=())
    verifier = OfficePartialVerifier(ComponentConfig())
    score = await verifier.score(TASK, rollout, Workspace(tmp_path))
    assert score.detail == {"files": False, "subject": False, "folder": False}
