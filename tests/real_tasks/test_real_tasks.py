"""The real programs on a task with an answer key, in containers, with a scripted policy."""

from pathlib import Path

import pytest

from mixharness.cli.main import run
from mixharness.rollout.store import RunStore

HERE = Path(__file__).parent
TASK = HERE.parent / "fixtures/clawgym/csv_summary"
HARNESSES = ("claude_code", "openclaw")


@pytest.mark.docker
@pytest.mark.claude_code
@pytest.mark.openclaw
def test_two_programs_work_where_the_task_says_and_see_no_answer_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(HERE)
    options = ["--tasks", f"clawgym:{TASK}", "--harness", ",".join(HARNESSES)]
    options += ["--sandbox", "docker", "--engine", "scripted", "--run-dir", str(tmp_path)]
    options += ["--set", "engine.script=write_a_note:policy", "--set", "engine.context=400000"]
    assert run(["rollout", *options]) == 0, capsys.readouterr().err
    store = RunStore(tmp_path)
    for harness in HARNESSES:
        rollout = store.load(f"rollout-csv_summary-{harness}-0")
        assert (rollout.failure, rollout.reward, len(rollout.calls)) == (None, 0.0, 2)
        assert rollout.exit is not None
        assert rollout.exit.final_message == "The note is in output/note.txt."
        note = (store.path(rollout.id) / "workspace/output/note.txt").read_text()
        assert note.startswith("/root/.openclaw/workspace\n")
        assert "sales.csv" in note
        assert "reward" not in note
