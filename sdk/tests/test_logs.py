import json
from pathlib import Path

import pytest
import structlog

from mixharness.logs import logs_to, setup_logs

log = structlog.get_logger()


def test_events_go_to_the_run_folder_and_back_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup_logs()
    with logs_to(tmp_path / "run") as path:
        log.info("rollout_finished", rollout="r1", score=0.5)
    log.warning("gate_slow", wait_s=3)
    event = json.loads(path.read_text())
    assert event.pop("timestamp")
    assert event == {"event": "rollout_finished", "level": "info", "rollout": "r1", "score": 0.5}
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "gate_slow" in captured.err


def test_the_level_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logs("warning")
    log.info("quiet_event")
    assert capsys.readouterr().err == ""
