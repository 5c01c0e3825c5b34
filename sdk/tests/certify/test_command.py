"""`mixharness certify`: exit status, table, JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from mixharness import Harness, hookimpl
from mixharness.certify.situations import load_situations
from mixharness.cli.main import run
from mixharness.plugins import Registry, load_plugins
from mixharness.testing import EchoHarness

ONLY_TALKS = "".join(
    f'[{situation.name}]\nnot_applicable = "it has no tools"\n'
    for situation in load_situations()
    if situation.name != "plain_answer"
)


class Talker(EchoHarness):
    name = "talker"


class Plugin:
    @staticmethod
    @hookimpl
    def register_harnesses() -> list[type[Harness[Any]]]:
        return [Talker]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(Talker, "certify", str(tmp_path))
    (tmp_path / "plugin.toml").write_text(ONLY_TALKS)
    return load_plugins(Plugin, installed=False)


def test_a_certificate_as_json(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certify", "talker", "--json", "--long-s", "0"], registry) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["harness", "version", "ok", "situations"]
    assert (found["harness"], found["ok"], len(found["situations"])) == ("talker", True, 18)
    assert found["situations"][0] == {
        "name": "plain_answer",
        "ok": True,
        "calls": 1,
        "bridged": 0,
        "forks": [],
        "roles": {"main": 1},
        "max_silence_s": 0.0,
        "exit": "completed",
    }


def test_what_is_not_as_expected_is_1(
    tmp_path: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plugin.toml").write_text(f'{ONLY_TALKS}[plain_answer]\nforks = ["user_changed"]\n')
    assert run(["certify", "talker"], registry) == 1
    lines = capsys.readouterr().out.splitlines()
    columns = [
        "situation",
        "ok",
        "calls",
        "bridged",
        "forks",
        "retries",
        "roles",
        "silence_s",
        "exit",
    ]
    assert lines[0].split() == columns
    row = ["plain_answer", "NO", "1", "0", "-", "0", "main", "1", "0.0", "completed"]
    assert lines[1].split() == row
    assert lines[2].endswith("not applicable: it has no tools")
    assert "plain_answer: expected fork user_changed did not happen" in lines
    assert lines[-1].startswith("talker ")
    assert lines[-1].endswith(": not ok")
    assert run(["certify", "talker", "--json"], registry) == 1
    captured = capsys.readouterr()
    assert not json.loads(captured.out)["ok"]
    assert "expected fork user_changed did not happen" in captured.err


def test_without_expectations_nothing_is_run(
    tmp_path: Path, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plugin.toml").unlink()
    assert run(["certify", "talker"], registry) == 2
    assert "plugin.toml" in capsys.readouterr().err
