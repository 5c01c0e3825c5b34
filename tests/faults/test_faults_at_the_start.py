"""What the user must change: exit code 2, one message, nothing started and nothing moved."""

import json
import socket
import tomllib

import pytest

RUN = """
[[harness]]
name = "agentloop"
[[task_source]]
name = "office"
count = 4
[engine]
name = "scripted"
turns = ["Done."]
[optimizer]
name = "sft"
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 2
"""
WRONG = """
seeed = 1
[[harness]]
name = "claude_cod"
[[harness]]
name = "agentloop"
tools = 3
[[task_source]]
name = "office"
split = "tain"
[engine]
name = "hf"
cache_mb = "much"
[sampling]
top_p = 0.9
[limits]
max_turns = 0
[optimizer]
name = "gpro"
[trainer]
lr = -1
[rollout]
port = 99999
"""


@pytest.fixture(autouse=True)
def files(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "wrong.toml").write_text(WRONG)


@pytest.fixture
def earlier(tmp_path):
    """Make the folder of an earlier run, which nothing may touch."""
    folder = tmp_path / "runs/run"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("")
    return folder


@pytest.mark.parametrize("verb", ["train", "rollout", "eval"])
def test_a_wrong_run_file_shows_every_problem(refused, tmp_path, temporary, verb):
    said = refused(verb, "wrong.toml")
    for where in ("seeed", "harness.0.name", "harness.1.tools", "task_source.0.split"):
        assert f"  {where} " in said
    for where in ("engine.cache_mb", "sampling.top_p", "limits.max_turns", "optimizer.name"):
        assert f"  {where} " in said
    for where in ("trainer.lr", "rollout.port"):
        assert f"  {where} " in said
    assert 'Did you mean "claude_code"?' in said
    assert len(said.splitlines()) <= 24  # one screen
    assert not (tmp_path / "runs").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("verb", ["train", "rollout"])
def test_a_missing_program_names_the_command_that_installs_it(
    refused, tmp_path, temporary, earlier, verb
):
    cache = temporary / "cache"
    cache.mkdir()
    settings = ["--set", "harness.0.name=claude_code"]
    said = refused(verb, "run.toml", *settings, MIXHARNESS_CACHE=str(cache))
    assert "mixharness harness install claude_code" in said
    assert list((tmp_path / "runs").iterdir()) == [earlier]
    assert [file.name for file in earlier.iterdir()] == ["events.jsonl"]


@pytest.mark.parametrize("verb", ["train", "rollout"])
def test_a_taken_port_is_named(refused, temporary, verb):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(verb, "run.toml", "--set", f"rollout.port={port}")
    assert f"cannot serve on 127.0.0.1 port {port}: Address already in use" in said
    assert list(temporary.iterdir()) == []


def test_an_engine_that_does_not_start_says_why(refused):
    said = refused("rollout", "run.toml", "--engine", "hf")
    assert "engine hf has no model folder: set `model` in [engine]" in said


def test_a_script_that_is_not_there_says_so(refused):
    said = refused("train", "run.toml", "--set", "cold_start.script=nowhere:script")
    assert "'nowhere:script'" in said


def test_nothing_to_resume_is_said(refused, tmp_path):
    assert "no run in runs/run to go on with" in refused("train", "run.toml", "--resume")
    assert not (tmp_path / "runs").exists()


def test_another_run_is_not_resumed_and_all_that_differs_is_named(refused, tmp_path, earlier):
    note = tomllib.loads(RUN) | {"seed": 9}
    note["rollout"] = {"on_limit": "zero", "concurrency": 2}
    (earlier / "run.json").write_text(json.dumps(note))
    said = refused("train", "run.toml", "--resume", "--set", "engine.turns=['Well.']")
    for difference in (
        'engine.turns.0    "Well." here, "Done." in the run in runs/run',
        'rollout.on_limit  not set here, "zero" in the run in runs/run',
        "seed              not set here, 9 in the run in runs/run",
    ):
        assert f"  {difference}\n" in said
    assert "concurrency" not in said
    assert json.loads((earlier / "run.json").read_text()) == note


def test_a_folder_that_is_no_run_is_left_alone(refused, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("Once upon a time")
    said = refused("train", "run.toml", "--run-dir", "thesis")
    assert "thesis" in said
    assert "holds something that is no run" in said
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]
