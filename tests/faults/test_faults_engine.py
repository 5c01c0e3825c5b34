"""An engine that dies in the middle: its rollouts fail as infrastructure, the run goes on."""

import json

import pytest

from mixharness import hookimpl
from mixharness.config import load_run_file
from mixharness.plugins import load_plugins
from mixharness.runs import load_rollouts
from mixharness.types import FailureKind
from mixharness.viewer import summary_table
from mixharness_trainer.engines.hf import HfEngine
from mixharness_trainer.train import train

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

RUN = """
[[harness]]
name = "agentloop"
tools = ["bash"]
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 4
[[task_source]]
name = "office"
count = 4
[[task_source]]
name = "office"
use = "eval"
split = "held_out"
count = 3
[engine]
name = "mortal"
cache_mb = 8
[sampling]
max_tokens = 16
[limits]
max_turns = 2
[rollout]
max_infra_retries = 0
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
captures = 2
layers = 1
hidden = 32
heads = 2
intermediate = 64
epochs = 1
[optimizer]
name = "grpo"
[trainer]
steps = 2
tasks_per_step = 2
group_size = 2
"""


class Mortal(HfEngine):
    """The real engine; its sampling thread ends when it has been given weights `LIVES` times."""

    name = "mortal"
    LIVES = 1

    async def load_weights(self, source, policy_version):
        await super().load_weights(source, policy_version)
        if policy_version == self.LIVES:
            self._manager._generation_step = _vanish


class Careless(Mortal):
    """Dies of the weights themselves."""

    name = "careless"

    async def load_weights(self, source, policy_version):
        raise MemoryError("no room for a second copy")


def _vanish() -> None:
    raise SystemExit  # passes by every handler of the loop


class Plugin:
    @hookimpl
    def register_engines(self):
        return [Mortal, Careless]


@pytest.fixture
def registry():
    return load_plugins(Plugin())


async def test_a_dead_engine_is_counted_and_the_run_ends_with_its_table(registry, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    config = load_run_file(tmp_path / "run.toml", registry)
    summary = await train(config, registry, tmp_path / "run")

    row = summary["harnesses"]["agentloop"]
    assert row["failures_by_kind"] == {FailureKind.ENGINE_ERROR: 4 + 3}
    assert (row["before"], row["after"], row["diff"], row["held_out_tasks"]) == (0.0, None, None, 0)
    assert list(summary_table(summary).columns[0].cells) == ["agentloop"]
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["failures/agentloop"] for step in steps] == [0, 4]
    assert steps[1]["failures_by_kind"] == {"engine_error": 4} == steps[1]["dropped"]
    assert steps[1]["reward/agentloop"] is None
    assert steps[1]["contrast_note/agentloop"].startswith("no usable group")
    assert all(r.score is None for r in load_rollouts(tmp_path / "run") if r.failure)
    assert (tmp_path / "run/report.html").stat().st_size > 1000


async def test_an_engine_that_refuses_weights_ends_no_run(registry, tmp_path):
    (tmp_path / "run.toml").write_text(RUN.replace('"mortal"', '"careless"'))
    config = load_run_file(tmp_path / "run.toml", registry, {"trainer.steps": 1})
    summary = await train(config, registry, tmp_path / "run")

    assert summary["harnesses"]["agentloop"]["held_out_tasks"] == 3
    step = json.loads((tmp_path / "run/metrics.jsonl").read_text())
    assert (step["policy_version"], step["weights_taken"]) == (0, False)
