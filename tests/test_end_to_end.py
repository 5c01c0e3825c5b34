"""`mixharness train` in both harnesses, small: GRPO into a run folder, and SFT the same twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from transformers import AutoModelForCausalLM

from mixharness.runs import load_rollouts

ROOT = Path(__file__).parents[1]
MIXED = """
name = "tiny"
seed = 3
[[harness]]
name = "agentloop"
tools = ["bash"]
[[harness]]
name = "claude_code"
tools = ["Bash"]
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 4
[[task_source]]
name = "office"
use = "train"
split = "train"
count = 3
[[task_source]]
name = "office"
use = "eval"
split = "held_out"
count = 2
[engine]
name = "hf"
cache_mb = 16
[sampling]
max_tokens = 24
[limits]
max_turns = 3
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
captures = 2
layers = 2
hidden = 64
intermediate = 128
heads = 2
epochs = 1
[optimizer]
name = "grpo"
[trainer]
steps = 2
tasks_per_step = 2
group_size = 2
"""
HARNESSES = ["agentloop", "claude_code"]
SUMMARY_KEYS = {
    *("before", "after", "diff", "diff_low", "diff_high", "held_out_tasks", "rollouts"),
    *("failures", "bridge_rate", "delivered_fraction", "unexplained_loss"),
}
pytestmark = [pytest.mark.claude_code, pytest.mark.slow]


def train(*args: str) -> str:
    code = "from mixharness.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *args],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def metrics_of(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "tiny.toml").write_text(MIXED)
    return folder / "run", train(str(folder / "tiny.toml"), "--run-dir", str(folder / "run"))


@pytest.fixture(scope="module")
def run_dir(printed) -> Path:
    return printed[0]


def test_the_summary_has_every_figure_of_every_harness(run_dir, printed):
    summary = json.loads((run_dir / "summary.json").read_text())
    assert {"harnesses", "wall_s", "steps"} <= summary.keys()
    assert (summary["steps"], sorted(summary["harnesses"])) == (2, HARNESSES)
    for label, row in summary["harnesses"].items():
        assert row.keys() >= SUMMARY_KEYS
        assert (row["held_out_tasks"], row["rollouts"]) == (2, 2 * 2 * 2 + 2 * 2)
        assert row["diff"] == pytest.approx(row["after"] - row["before"])
        assert row["diff_low"] <= row["diff"] <= row["diff_high"]
        assert (row["bridge_rate"], row["unexplained_loss"]) == (1.0, 0.0)
        assert row["delivered_fraction"] == 1.0
        assert label in printed[1]


def test_every_step_has_contrast_or_says_why_not(run_dir):
    steps = metrics_of(run_dir)
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        for label in HARNESSES:
            note = step.get(f"contrast_note/{label}", "")
            assert step[f"contrast/{label}"] > 0 or note.startswith("all 2 groups are unanimous")


def test_engine_and_trainer_agree_and_versions_rise(run_dir):
    steps = metrics_of(run_dir)
    assert [step["policy_version"] for step in steps] == [1, 2]
    for step in steps:
        assert 0 < step["logp_gap/mean_abs"] < 1e-4
        assert step["tokens"] > 0
    versions = {r.policy_version for r in load_rollouts(run_dir) if r.id.startswith("eval-after")}
    assert versions == {2}


def test_the_run_folder_holds_all_that_was_done(run_dir):
    rollouts = load_rollouts(run_dir)
    assert {rollout.key.harness for rollout in rollouts} == set(HARNESSES)
    assert all(rollout.calls for rollout in rollouts)
    assert orjson.loads((run_dir / "run.json").read_bytes())["seed"] == 3
    report = (run_dir / "report.html").read_text()
    assert all(label in report for label in HARNESSES)
    model = AutoModelForCausalLM.from_pretrained(run_dir / "checkpoint")
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (2, 64)


def test_sft_on_a_script_is_the_same_twice(tmp_path):
    small = ["trainer.steps=2", "task_source.0.count=2", "task_source.1.count=2"]
    small += ["cold_start.captures=1", "cold_start.layers=1", "trainer.tasks_per_step=1"]
    command = [str(ROOT / "configs/scripted_sft.toml"), "--engine", "scripted", "--optimizer"]
    command += ["sft", "--seed", "1", *(word for key in small for word in ("--set", key))]
    figures, hashes = [], []
    for name in ("first", "second"):
        train(*command, "--run-dir", str(tmp_path / name))
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        hashes.append((summary["weight_hash"], summary["optimizer_hash"]))
        steps = metrics_of(tmp_path / name)
        figures.append([{k: v for k, v in s.items() if k[:5] != "time/"} for s in steps])
    assert figures[0] == figures[1]
    assert hashes[0] == hashes[1]
    assert [step["reward/claude_code"] for step in figures[0]] == [1.0, 1.0]
    assert figures[0][0]["loss"] > 0
