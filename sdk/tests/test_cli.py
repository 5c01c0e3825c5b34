"""The command line: exit codes, what is printed, and that nothing starts before all is checked."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory

from mixharness import Harness, HarnessExit, ProgramMissingError, Session, hookimpl
from mixharness.cli.main import run
from mixharness.plugins import Registry, load_plugins
from mixharness.rollout.store import RunStore
from mixharness.testing import doubles_plugin
from mixharness.tree.tokens import prompt_ids

RUN_FILE = """
[[harness]]
name = "echo"
[[harness]]
name = "echo"
label = "twice"
turns = 2
[[task_source]]
name = "jsonl"
path = "{tasks}"
[[task_source]]
name = "jsonl"
path = "{tasks}"
use = "eval"
[engine]
name = "scripted"
turns = ["4"]
"""
TASKS = [
    {"id": "four", "prompt": "Write 4.", "answer": {"text": "4"}},
    {"id": "five", "prompt": "Write 5.", "answer": {"text": "5"}},
]


class Programless(Harness[Any]):
    name = "programless"
    dialects = ("openai_chat",)

    def find(self, cache: Path) -> None:
        raise ProgramMissingError("programless is missing: mixharness harness install programless")

    async def run(self, session: Session) -> HarnessExit:
        raise AssertionError("must not be started")


class MorePlugin:
    @staticmethod
    @hookimpl
    def register_harnesses() -> list[type[Programless]]:
        return [Programless]


@pytest.fixture
def registry() -> Registry:
    return load_plugins(doubles_plugin, MorePlugin, installed=False)


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("\n".join(map(json.dumps, TASKS)))
    file = tmp_path / "demo.toml"
    file.write_text(RUN_FILE.format(tasks=tasks))
    return file


def test_plugins_as_json(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "--json"], registry) == 0
    rows = json.loads(capsys.readouterr().out)
    (local,) = (row for row in rows if row["name"] == "local")
    assert local == {
        "name": "local",
        "kind": "sandbox",
        "distribution": "mixharness",
        "version": "0.1.0",
        "status": "ok",
    }


def test_plugins_as_a_table(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins"], registry) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["kind", "name", "distribution", "version", "status"]
    assert ["engine", "scripted", "mixharness", "0.1.0", "ok"] in [line.split() for line in lines]


def test_a_wrong_run_file_is_2_in_one_screen_and_starts_nothing(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file.write_text(run_file.read_text().replace("turns = 2", "turn = 2") + "[limit]\n")
    assert run(["rollout", str(run_file)], registry) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 'harness.1.turn  unknown key; did you mean "turns"?' in captured.err
    assert 'limit           unknown key; did you mean "limits"?' in captured.err
    assert "Traceback" not in captured.err
    assert not (run_file.parent / "runs").exists()


def test_limits_of_a_task_are_checked_in_the_place_of_the_run_files(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [{"agent_s": 900}, {"max_turn": 2}, {"max_turns": 2.5}, {"wall_s": 1000}]
    lines = [{**TASKS[0], "id": f"t{n}", "limits": limits} for n, limits in enumerate(wrong)]
    (run_file.parent / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run(["rollout", str(run_file)], registry) == 2
    error = capsys.readouterr().err
    assert "task t0: limits            wall_s (900) must exceed agent_s (900)" in error
    assert 'task t1: limits.max_turn   unknown key; did you mean "max_turns"?' in error
    assert "task t2: limits.max_turns  2.5 must be a valid integer" in error
    assert "t3" not in error
    assert not (run_file.parent / "runs").exists()


def test_a_missing_program_is_2_with_the_command(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["rollout", str(run_file), "--set", "harness.0.name=programless"]
    assert run(command, registry) == 2
    assert "mixharness harness install programless" in capsys.readouterr().err
    assert not (run_file.parent / "runs").exists()


def test_rollout_collects_resumes_and_can_be_audited(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rollout", str(run_file)], registry) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["echo", "2", "2", "0.500", "-", "0"] in lines
    assert ["twice", "2", "4", "0.500", "-", "0"] in lines
    stored = sorted(run_file.parent.glob("runs/demo/rollouts/*/rollout.json"))
    times = [file.stat().st_mtime_ns for file in stored]
    assert len(stored) == 4

    assert run(["rollout", str(run_file)], registry) == 0
    assert [file.stat().st_mtime_ns for file in stored] == times
    capsys.readouterr()

    assert run(["audit", "runs/demo", "--json"], registry) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["twice"]["calls"] == 4
    assert found["twice"]["bridge_rate"] == 1.0
    assert found["twice"]["unexplained_loss"] == 0.0


def test_rollout_without_a_run_file(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file.unlink()
    options = ["--tasks", "jsonl:tasks.jsonl", "--harness", "echo", "--engine", "scripted"]
    options += ["--set", 'engine.turns=["5"]', "--limit", "1"]
    assert run(["rollout", *options], registry) == 0
    lines = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert ["echo", "1", "1", "0.000", "-"] in lines
    assert [path.name for path in Path("runs/rollout/rollouts").iterdir()] == [
        "rollout-four-echo-0"
    ]

    assert run(["rollout", *options, "--limit", "2"], registry) == 0  # more of the same run
    lines = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert ["echo", "2", "2", "0.500", "-"] in lines


def test_options_take_the_place_of_tables(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("one.jsonl").write_text(json.dumps(TASKS[0]))
    options = ["--tasks", "jsonl:one.jsonl", "--harness", "twice", "--sandbox", "local"]
    assert run(["rollout", str(run_file), *options], registry) == 0
    lines = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line[0] in ("echo", "twice")] == [
        ["twice", "1", "2", "1.000", "-"]
    ]


def test_everything_wrong_with_the_options_is_said_at_once(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tasks", "clawgym", "--tasks", "jsnl:x", "--harness", "echo, ecko"]
    assert run(["rollout", *options, "--sandbox", "loca", "--set", "limit.x=1"], registry) == 2
    found = capsys.readouterr().err.splitlines()
    assert found[0] == "config error in the command line"
    assert [line.split("  ")[1] for line in found[1:]] == [
        "limit",
        "harness.1.name",
        "task_source.0.path",
        "task_source.1.name",
        "sandbox.name",
        "engine",
    ]
    assert not Path("runs").exists()


def test_everything_wrong_with_a_task_folder_is_said_at_once(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(25):
        Path(f"tasks/{number:02}").mkdir(parents=True)
    assert run(["rollout", str(run_file), "--tasks", "clawgym:tasks"], registry) == 2
    lines = capsys.readouterr().err.splitlines()
    found = [line for line in lines if line.startswith("  task_source.0  ")]
    assert found[0].endswith("tasks/00/reward/reward.sh: missing; it prints the score")
    assert found[1].endswith("tasks/00/data_entry.json: missing; every task folder has one")
    assert (len(found), found[-1].split("  ")[-1]) == (21, "... and 30 more")


def test_a_folder_of_another_run_is_refused(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rollout", str(run_file)], registry) == 0
    assert run(["rollout", str(run_file), "--seed", "7"], registry) == 2
    assert "seed       7 here, not set in the run in runs/demo" in capsys.readouterr().err


def test_eval_scores_in_a_folder_of_its_own(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", str(run_file), "--samples", "2"], registry) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["echo", "4", "4", "0.500", "-", "0"] in lines
    assert len(list(run_file.parent.glob("runs/demo/eval-*/rollouts/*"))) == 8


def test_the_task_source_of_the_use_is_required(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file.write_text(run_file.read_text().replace('use = "eval"', ""))
    assert run(["eval", str(run_file)], registry) == 2
    assert 'required: a [[task_source]] with use = "eval"' in capsys.readouterr().err


def test_export_atif_is_valid_and_holds_the_record(
    run_file: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rollout", str(run_file)], registry) == 0
    assert run(["export", "atif", "runs/demo"], registry) == 0
    assert "4 trajectories are in runs/demo/atif" in capsys.readouterr().out
    folder = run_file.parent / "runs/demo"
    for rollout_id in RunStore(folder).finished():
        rollout = RunStore(folder).load(rollout_id)
        text = (folder / "atif" / f"{rollout_id}.json").read_text()
        trajectory = Trajectory.model_validate_json(text)
        steps = [step for step in trajectory.steps if step.source == "agent"]
        assert [step.message for step in steps] == ["4"] * len(rollout.calls)
        for step, call in zip(steps, rollout.calls, strict=True):
            assert step.metrics is not None
            assert step.metrics.prompt_token_ids == list(prompt_ids(rollout.calls, call.id))
            assert step.metrics.completion_token_ids == list(call.sampled_ids)
            assert step.metrics.logprobs == list(call.logprobs)

    assert run(["export", "atif", "runs/demo", "--out", "all.jsonl"], registry) == 0
    lines = (run_file.parent / "all.jsonl").read_text().splitlines()
    assert [Trajectory.model_validate_json(line).trajectory_id for line in lines] == [
        path.stem for path in sorted((folder / "atif").iterdir())
    ]


@pytest.mark.parametrize("command", [["audit"], ["export", "atif"]])
def test_a_folder_without_rollouts(
    tmp_path: Path,
    registry: Registry,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    assert run([*command, str(tmp_path)], registry) == 2
    assert "no finished rollout" in capsys.readouterr().err


def test_install_of_a_harness_without_a_program(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["harness", "install", "echo"], registry) == 0
    assert capsys.readouterr().out == "echo needs no program\n"


def test_install_of_an_unknown_harness(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["harness", "install", "ecko"], registry) == 2
    assert 'Did you mean "echo"?' in capsys.readouterr().err


def test_reap(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sandbox", "reap"], registry) == 0
    assert capsys.readouterr().out.endswith("sandboxes removed\n")


def test_a_wrong_option_is_2(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "--jsn"], registry) == 2
    assert "--jsn" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_130_and_closes_it(tmp_path: Path, number: int) -> None:
    code = """
import asyncio, sys
from mixharness.interrupt import run_interruptible
from mixharness.cli import main

async def work():
    try:
        print("started", flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("closed", flush=True)

try:
    run_interruptible(work())
except KeyboardInterrupt:
    sys.exit(130)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, number)
        assert process.stdout.read() == "closed\n"
    assert process.returncode == 130
