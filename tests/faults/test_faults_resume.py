"""`kill -9` of a training at any point; `--resume` goes on, and ends as if nothing had happened.

The trainings run in killed_training.py. A run's folder is what it is between two of its changes, so
that a kill before each change is a kill at every point.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.rollout.store import ROLLOUT_FILE, RunStore
from mixharness_trainer.policy import PolicyShape, new_policy

RUN = """
seed = 3
[[harness]]
name = "asker"
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
[policy]
context = 512
{policy}
[sampling]
max_tokens = 8
[rollout]
concurrency = 1
[trainer]
steps = {steps}
tasks_per_step = 2
group_size = {group_size}
checkpoint_every = {checkpoint_every}
max_staleness = {max_staleness}
[[tracker]]
name = "audited"
[engine]
"""
SFT = """
name = "scripted"
turns = ["Well.", "Done."]
[optimizer]
name = "sft"
"""
HF = """
name = "hf"
cache_mb = 4
[optimizer]
name = "grpo"
"""
MODEL = 'model = "model"'
COLD_START = """
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
use = "cold_start"
[cold_start]
script = "killed_training:demonstrate"
captures = 1
vocab_size = 300
layers = 1
hidden = 32
heads = 2
intermediate = 32
epochs = 1
"""
SHAPE = PolicyShape(layers=1, hidden=32, heads=2, kv_heads=1, intermediate=32, context=512)
DURABLE = re.compile(r"(os\.rename|os\.symlink|os\.rmdir|metrics\.line) (?!.*/grading)")
"""The changes that count at once; others prepare a file or folder that is renamed later."""
KILLED = -9


def run_file(end: str, policy: str = MODEL, **trainer: int) -> str:
    settings = {"steps": 2, "group_size": 1, "checkpoint_every": 1, "max_staleness": 0}
    return RUN.format(policy=policy, **settings | trainer) + end


FILES = {
    "warm": run_file(SFT),
    "cold": run_file(SFT, COLD_START, checkpoint_every=2),  # a step is taken again
    "sampled": run_file(HF, group_size=2),
    "ahead": run_file(HF, group_size=2, steps=4, checkpoint_every=2, max_staleness=1),
}


class Trainings:
    """The process that trains, and the folder that it works in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        new_policy(folder / "model", byte_tokenizer(), SHAPE, seed=0)
        lines = [{"id": f"t{n}", "prompt": f"Task {n}.", "answer": {"text": "even"}} for n in "abc"]
        (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
        script = Path(__file__).with_name("killed_training.py")
        environment = {"OMP_NUM_THREADS": "1", "MIXHARNESS_PLUGINS": "trainer"}
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, "TMPDIR": str(folder.parent)},
            text=True,
        )

    def run(self, file: str, run_dir: str, *, resume: bool = True, **kill: Any) -> dict[str, Any]:
        """Train, or go on with it, until it ends or is killed."""
        order = {"run_file": file, "run_dir": str(self.folder / run_dir), "resume": resume}
        print(json.dumps(order | kill), file=self._process.stdin, flush=True)
        done: dict[str, Any] = json.loads(self._process.stdout.readline())
        said = (self.folder / "said.txt").read_text()[-2000:]
        assert done["status"] in (0, KILLED), said
        return done

    def result(self, run_dir: str) -> dict[str, Any]:
        """Return what a run came to, all but its times."""
        summary = json.loads((self.folder / run_dir / "summary.json").read_text())
        lines = (self.folder / run_dir / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        summary.pop("wall_s")
        timeless = [{k: v for k, v in s.items() if not k.startswith("time/")} for s in steps]
        return {"summary": summary, "metrics": timeless}

    def stop(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def trainings() -> Iterator[Trainings]:
    with tempfile.TemporaryDirectory(prefix="mixharness-resume-") as name:
        Path(name).chmod(0o711)
        (folder := Path(name, "work")).mkdir()
        started = Trainings(folder)
        yield started
        started.stop()


@pytest.fixture(scope="module")
def undisturbed(trainings):
    """Return a run that nobody killed: its file, its name and its changes, in order."""
    there = {}

    def run(name):
        if name not in there:
            file = f"{name}.toml"
            (trainings.folder / file).write_text(FILES[name])
            there[name] = file, name, trainings.run(file, name, resume=False)["changes"]
        return there[name]

    return run


def kill_before(trainings, file, run_dir, points):
    """Kill a run before each of some changes, resuming it in between, and let it end."""
    for number, point in enumerate(points):
        done = trainings.run(file, run_dir, resume=number > 0, before=point)
        assert done["status"] == KILLED, point
    assert trainings.run(file, run_dir)["status"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warm", "cold"])
def test_killed_before_every_durable_write(trainings, undisturbed, name):
    file, name, changes = undisturbed(name)
    kill_before(trainings, file, f"{name}-points", durable(changes))
    assert trainings.result(f"{name}-points") == trainings.result(name)
    assert not leftovers(trainings.folder / f"{name}-points")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warm", "sampled"])
def test_killed_at_twenty_random_changes(trainings, undisturbed, name):
    """All changes count, those inside a rollout or a save too; runs follow until 20 are killed."""
    file, name, changes = undisturbed(name)
    rng, kills, run_dir = random.Random(name), 0, ""
    while kills < 20 or run_dir:
        at = rng.randint(1, len(changes) // 3) if kills < 20 else 0  # a run is killed many times
        # Before its events are noted a folder holds no run, and is none to go on with.
        at = max(at, 4) if not run_dir else at
        resume, run_dir = bool(run_dir), run_dir or f"{name}-random-{kills}"
        if trainings.run(file, run_dir, resume=resume, at=at)["status"] == KILLED:
            kills += 1
            continue
        if name == "warm":
            assert trainings.result(run_dir) == trainings.result(name)
        else:
            assert_alike(trainings, run_dir, name)
        assert not leftovers(trainings.folder / run_dir)
        run_dir = ""


@pytest.mark.slow
def test_a_sampled_run_is_the_same_when_killed_outside_of_its_rollouts(trainings, undisturbed):
    file, name, changes = undisturbed("sampled")
    points = [each for each in durable(changes) if " rollouts/" not in each]
    kill_before(trainings, file, "outside", points)
    assert trainings.result("outside") == trainings.result(name)
    rewards = [step["reward/asker"] for step in trainings.result(name)["metrics"]]
    assert any(0 < reward < 1 for reward in rewards)  # or nothing was learned


@pytest.mark.slow
def test_a_sampled_run_keeps_its_rollouts_when_killed_inside_of_them(trainings, undisturbed):
    file, name, changes = undisturbed("sampled")
    folder, kept = trainings.folder / "inside", {}
    points = [each for each in durable(changes) if " rollouts/" in each]
    for number, point in enumerate(points):
        done = trainings.run(file, "inside", resume=number > 0, before=point)
        assert done["status"] == KILLED, point
        earlier, kept = kept, stored(folder)
        assert kept.items() >= earlier.items()
        assert len(kept) == number  # only the one that was under way is lost
    assert trainings.run(file, "inside")["status"] == 0
    assert stored(folder).items() >= kept.items()
    assert_alike(trainings, "inside", name)


@pytest.mark.slow
def test_a_run_ahead_of_its_trainer_is_killed_at_twenty_random_changes(trainings, undisturbed):
    """What it samples depends on how fast it is; what is kept of it does not."""
    file, name, changes = undisturbed("ahead")
    rng, kills, runs = random.Random(name), 0, 0
    while kills < 20:
        run_dir, noted, runs = f"ahead-{runs}", {}, runs + 1
        at = rng.randint(4, len(changes) // 3)
        done = trainings.run(file, run_dir, resume=False, at=at)
        while done["status"] == KILLED:
            earlier, noted, kills = noted, journal(trainings.folder / run_dir), kills + 1
            assert noted.items() >= earlier.items()  # a step keeps the groups that it took
            at = rng.randint(1, len(changes) // 3) if kills < 20 else 0
            done = trainings.run(file, run_dir, at=at)
        assert_trained_once(trainings.folder / run_dir)
        assert not leftovers(trainings.folder / run_dir)
    assert_trained_once(trainings.folder / name)


def journal(run_dir):
    """Return what is noted of each step of a run that runs ahead."""
    return {int(f.stem): json.loads(f.read_text()) for f in (run_dir / "ahead").glob("*.json")}


def assert_trained_once(run_dir):
    """Each step took groups that no other did, young enough; all other rollouts are excluded."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    taken, store = journal(run_dir), RunStore(run_dir)
    assert [line["step"] for line in lines] == [1, 2, 3, 4] == sorted(taken)
    assert max(line["staleness/max"] for line in lines) <= 1
    groups = [number for step in taken.values() for number in (*step["groups"], *step["stale"])]
    assert len(groups) == len(set(groups))
    trained = [
        name for step in taken.values() for names in step["groups"].values() for name in names
    ]
    assert len(trained) == len(set(trained)) == 4 * 2 * 2
    usable = {name for name in store.finished() if store.load(name).usable}
    assert usable == set(trained)


def assert_alike(trainings, run_dir, name):
    """Compare what was sampled, and figures to the precision that a batch's make-up leaves."""
    one, other = (RunStore(trainings.folder / each) for each in (run_dir, name))
    assert one.finished() == other.finished()
    for rollout_id in other.finished():
        ids = [[call.sampled_ids for call in s.load(rollout_id).calls] for s in (one, other)]
        assert ids[0] == ids[1]
    found, expected = (trainings.result(each)["metrics"] for each in (run_dir, name))
    assert [step.keys() for step in found] == [step.keys() for step in expected]
    for step, wanted in zip(found, expected, strict=True):
        for key, value in wanted.items():
            if key.startswith("logp_gap/"):  # of the order of the rounding itself
                continue
            near = pytest.approx(value, rel=1e-3, abs=1e-6) if isinstance(value, float) else value
            assert step[key] == near, key


def stored(run_dir):
    """Return when each finished rollout was written."""
    files = (run_dir / "rollouts").glob(f"*/{ROLLOUT_FILE}")
    return {file.parent.name: file.stat().st_mtime_ns for file in files if "~" not in str(file)}


def durable(changes):
    """Return the changes that count, each once."""
    return list(dict.fromkeys(each for each in changes if DURABLE.match(each)))


def leftovers(run_dir):
    """Return what only an unfinished write leaves in the folder of a finished run."""
    names = [path.name for path in run_dir.iterdir()]
    half = [name for name in names if re.match(r"\.(?!run\.json|summary\.json)", name)]
    return half + [name for name in names if name.startswith("checkpoint-")][1:]
