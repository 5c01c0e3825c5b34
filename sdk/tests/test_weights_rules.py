from pathlib import Path
from typing import Any

import pytest

from mixharness.cli.main import run
from mixharness.config import load_run_file
from mixharness.errors import ConfigError
from mixharness.plugins import Registry, load_plugins
from mixharness.testing import doubles_plugin
from mixharness.weights_rules import check_rules, note_rules, rules_of_run

RUN_FILE = """
[[harness]]
name = "echo"
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
use = "eval"
[engine]
name = "scripted"
turns = ["4"]
[rollout]
render_rules = [{rules}]
"""
TASK = '{"id": "four", "prompt": "Write 4.", "answer": {"text": "4"}}\n'


@pytest.fixture
def registry() -> Registry:
    return load_plugins(doubles_plugin, installed=False)


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write(*rules: str) -> Path:
        (tmp_path / "tasks.jsonl").write_text(TASK)
        listed = ", ".join(f'"{rule}"' for rule in rules)
        (tmp_path / "demo.toml").write_text(RUN_FILE.format(rules=listed))
        return tmp_path / "demo.toml"

    return write


def test_a_run_files_rules_carry_their_versions(run_file: Any, registry: Registry) -> None:
    config = load_run_file(run_file("reattach_reasoning", "drop_timestamp"), registry)
    assert rules_of_run(config, registry) == ["drop_timestamp@1", "reattach_reasoning@1"]


def test_weights_of_other_rules_are_refused(tmp_path: Path) -> None:
    check_rules(tmp_path, ["a@1"])  # no note: weights that nobody here trained
    note_rules(tmp_path, ["b@1", "a@1"])
    check_rules(tmp_path, ["a@1", "b@1"])
    with pytest.raises(ConfigError, match=r"under render rules \[a@1, b@1\], this run has \[a@2"):
        check_rules(tmp_path, ["a@2", "b@1"])


def test_eval_refuses_them_unless_forced(
    run_file: Any, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_rules(tmp_path, ["drop_timestamp@1"])
    command = ["eval", str(run_file()), "--weights", str(tmp_path)]
    assert run(command, registry) == 2
    assert "trained under render rules [drop_timestamp@1]" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/**/rollouts"))
    assert run([*command, "--force"], registry) == 0
    assert run(["eval", str(run_file("drop_timestamp")), "--weights", str(tmp_path)], registry) == 0
