"""Which run files are refused before anything starts, and what a run does to its folder."""

import pytest

from mixharness.cli.main import run
from mixharness.config import load_run_file
from mixharness.errors import ConfigError
from mixharness.plugins import load_plugins
from mixharness_trainer.before import alone, check, claim, find_run

RUN = """
[[harness]]
name = "agentloop"
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 2
[[task_source]]
name = "office"
count = 3
[engine]
name = "scripted"
script = "mixharness_office.demonstrations:demonstrate_expert"
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
[optimizer]
name = "sft"
[trainer]
tasks_per_step = 2
"""


@pytest.fixture(scope="module")
def registry():
    return load_plugins()


@pytest.fixture
def load(tmp_path, registry):
    def config(text: str):
        (tmp_path / "run.toml").write_text(text)
        return load_run_file(tmp_path / "run.toml", registry)

    return config


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("found", "put", "where", "says"),
    [
        ('[optimizer]\nname = "sft"', "", "optimizer", "required: a table [optimizer]"),
        ("count = 3", 'count = 3\nuse = "eval"', "task_source", "nothing to train on"),
        ("tasks_per_step = 2", "tasks_per_step = 4", "trainer.tasks_per_step", "4 is more than"),
        (
            "[trainer]",
            "[trainer]\nmax_staleness = 1\nresample_zero_variance = 1",
            "trainer.resample_zero_variance",
            "draws groups within a step",
        ),
        ('use = "cold_start"', "", "task_source", "[cold_start] needs tasks"),
        ('name = "agentloop"', 'name = "agentloop"\nweight = 0', "harness", "there is none to"),
        ("[optimizer]", '[policy]\nmodel = "gone"\n[optimizer]', "policy.model", "'gone' is no"),
    ],
)
async def test_what_cannot_be_trained_is_refused(load, registry, found, put, where, says):
    assert found in RUN
    text = RUN.replace(found, put)
    if where == "task_source" and "needs tasks" in says:
        text = text.replace('split = "cold_start"', "seed = 5")
    with pytest.raises(ConfigError) as refused:
        await check(load(text), registry)
    assert [path for path, _ in refused.value.problems] == [where]
    assert says in refused.value.problems[0][1]


@pytest.mark.anyio
async def test_all_problems_come_at_once(load, registry):
    text = RUN[: RUN.index("[cold_start]")].replace('"cold_start"', '"eval"', 1)
    text = text.replace('split = "cold_start"', "")
    with pytest.raises(ConfigError) as refused:
        await check(load(text), registry)
    assert [path for path, _ in refused.value.problems] == [
        "optimizer",
        "trainer.tasks_per_step",
        "cold_start",
        "task_source",
    ]


def test_an_earlier_run_is_set_aside(tmp_path):
    for number in range(3):
        claim(tmp_path / "run")
        (tmp_path / "run/events.jsonl").write_text(str(number))
    found = {each.name: (each / "events.jsonl").read_text() for each in tmp_path.iterdir()}
    assert found == {"run~1": "0", "run~2": "1", "run": "2"}


def test_a_folder_is_held_by_one_training_at_a_time(tmp_path):
    claim(tmp_path / "run")
    with alone(tmp_path / "run"):
        for attempt in (lambda: claim(tmp_path / "run"), alone(tmp_path / "run").__enter__):
            with pytest.raises(ConfigError, match="another process trains in this folder"):
                attempt()
        assert [each.name for each in tmp_path.iterdir()] == ["run"]
    claim(tmp_path / "run")
    assert {each.name for each in tmp_path.iterdir()} == {"run~1", "run"}


def test_only_a_run_is_resumed(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match=r"no run in .* to go on with"):
            find_run(folder)
    (tmp_path / "events.jsonl").touch()
    find_run(tmp_path)


def test_what_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    claim(tmp_path / "thesis")  # empty: nothing to lose
    (tmp_path / "thesis/chapter.txt").write_text("Once upon a time")
    for taken in (tmp_path / "thesis", tmp_path / "thesis/chapter.txt"):
        with pytest.raises(ConfigError, match="holds something that is no run"):
            claim(taken)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis"]


def test_leave_out_stands_for_a_weight_of_0(load, registry, tmp_path, capsys):
    load(RUN.replace('name = "agentloop"', 'name = "agentloop"\nlabel = "white"'))
    args = ["train", str(tmp_path / "run.toml"), "--run-dir", str(tmp_path / "run"), "--leave-out"]

    assert run([*args, "white"], registry) == run([*args, "black"], registry) == 2

    said = capsys.readouterr().err
    assert "harness  each has weight = 0 or groups = 0: there is none to train in" in said
    assert "harness.black  no such entry; there are 1: white" in said
    assert not (tmp_path / "run").exists()
