"""Which run files go on with a folder's run, and what is said of those that do not."""

from pathlib import Path

import orjson
import pytest

from mixharness.config import RunConfig, load_run_file
from mixharness.errors import ConfigError
from mixharness.plugins import load_plugins
from mixharness.run_folder import RUN_FILE, note_run_file

RUN = """
seed = 1
[[harness]]
name = "agentloop"
[[harness]]
name = "agentloop"
label = "second"
[[task_source]]
name = "office"
[engine]
name = "scripted"
turns = ["Done."]
[rollout]
concurrency = 2
"""


@pytest.fixture
def config(tmp_path: Path):
    def load(text: str = RUN) -> RunConfig:
        (tmp_path / "run.toml").write_text(text)
        return load_run_file(tmp_path / "run.toml", load_plugins())

    return load


def test_every_difference_is_named_with_both_values(config, tmp_path: Path) -> None:
    note_run_file(config(), tmp_path / "run")
    before = (tmp_path / "run" / RUN_FILE).read_bytes()
    other = RUN.replace("seed = 1\n", "").replace('["Done."]', '["Done.", "Well."]')
    other = other.replace('label = "second"', 'label = "other"') + "[limits]\nmax_turns = 2\n"

    with pytest.raises(ConfigError) as refused:
        note_run_file(config(other), tmp_path / "run")

    where = f"in the run in {tmp_path / 'run'}"
    assert refused.value.problems[:-1] == (
        ("engine.turns.1", f'"Well." here, not set {where}'),
        ("harness.1.label", f'"other" here, "second" {where}'),
        ("limits.max_turns", f"2 here, not set {where}"),
        ("seed", f"not set here, 1 {where}"),
    )
    assert (tmp_path / "run" / RUN_FILE).read_bytes() == before


def test_what_is_free_may_change_and_is_noted(config, tmp_path: Path) -> None:
    note_run_file(config(), tmp_path / "run")
    other = config(RUN.replace("concurrency = 2", "concurrency = 9"))
    with pytest.raises(ConfigError, match=r"rollout\.concurrency +9 here, 2 in the run"):
        note_run_file(other, tmp_path / "run", free=("rollout.con", "tracker"))
    note_run_file(other, tmp_path / "run", free=("rollout.concurrency",))
    assert orjson.loads((tmp_path / "run" / RUN_FILE).read_bytes())["rollout"] == {"concurrency": 9}
