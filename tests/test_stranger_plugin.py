"""A stranger's plugin is installed with pip and used from a run file through the command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PARROT = Path(__file__).parent / "fixtures/parrot"
RUN_FILE = """
[[harness]]
name = "parrot"
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
verifier = "squawk"
[engine]
name = "scripted"
turns = ["Polly says hello."]
"""
TASKS = [
    {"id": "hello", "prompt": "Say hello.", "answer": {"word": "hello"}},
    {"id": "bye", "prompt": "Say goodbye.", "answer": {"word": "goodbye"}},
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the parrot into a folder of its own; return an environment that finds it."""
    folder = tmp_path_factory.mktemp("stranger")
    # A copy: building must leave nothing in the repository.
    source = shutil.copytree(PARROT, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    pip += ["--no-index", "--target", str(folder / "site"), str(source)]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    return {**os.environ, "PYTHONPATH": str(folder / "site"), "MIXHARNESS_PLUGINS": "parrot"}


def mixharness(environment: dict[str, str], folder: Path, *args: str) -> str:
    code = "from mixharness.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed(environment: dict[str, str], tmp_path: Path) -> None:
    rows = json.loads(mixharness(environment, tmp_path, "plugins", "--json"))
    found = [row for row in rows if row["distribution"] == "mixharness-parrot"]
    assert [(row["kind"], row["name"], row["version"], row["status"]) for row in found] == [
        ("harness", "parrot", "1.4.2", "ok"),
        ("verifier", "squawk", "1.4.2", "ok"),
    ]


def test_it_is_used_from_a_run_file(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "birds.toml").write_text(RUN_FILE)
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    out = mixharness(environment, tmp_path, "rollout", "birds.toml")
    assert ["parrot", "2", "2", "0.500", "-", "0"] in [line.split() for line in out.splitlines()]
    audit = json.loads(mixharness(environment, tmp_path, "audit", "runs/birds", "--json"))
    assert audit["parrot"]["calls"] == 2
    assert audit["parrot"]["unexplained_loss"] == 0.0


def test_it_can_be_certified(environment: dict[str, str], tmp_path: Path) -> None:
    found = json.loads(mixharness(environment, tmp_path, "certify", "parrot", "--json"))
    assert (found["harness"], found["version"], found["ok"]) == ("parrot", "1.4.2", True)
    run = [each for each in found["situations"] if each["exit"] == "completed"]
    assert [(each["name"], each["calls"]) for each in run] == [("plain_answer", 1)]


def test_its_own_contract_tests_pass(environment: dict[str, str], tmp_path: Path) -> None:
    tests = shutil.copytree(PARROT / "tests", tmp_path / "tests")
    (tests / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture(scope='session')\n"
        "def anyio_backend():\n    return 'asyncio'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout
