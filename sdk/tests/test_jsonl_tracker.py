"""What a resumed run finds in its metrics, and adds to them."""

import json
from pathlib import Path

from mixharness.builtin.jsonl_tracker import JsonlTracker, JsonlTrackerConfig


def log(folder: Path, *steps: int, loss: float) -> None:
    tracker = JsonlTracker(JsonlTrackerConfig())
    tracker.start(folder, {})
    for step in steps:
        tracker.log({"loss": loss}, step)
    tracker.finish()


def test_a_resumed_run_adds_what_is_not_there_and_drops_half_a_line(tmp_path: Path) -> None:
    log(tmp_path, 1, 2, loss=0.5)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step":3,"lo')
    log(tmp_path, 2, 3, 4, loss=0.25)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.25),
        (4, 0.25),
    ]
