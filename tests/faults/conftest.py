"""The command line as a process of its own, and where its sandboxes live. No assertions here."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MIXHARNESS = [sys.executable, "-c", "from mixharness.cli import main; main()"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Return a temporary folder for the run's processes; open to the sandboxes' users."""
    with tempfile.TemporaryDirectory(prefix="mixharness-faults-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def start(temporary: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line in `tmp_path`, in a process group of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str, **environment: str) -> subprocess.Popen[str]:
        own = {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
        process = subprocess.Popen(
            [*MIXHARNESS, *args],
            env={**os.environ, **own, **environment},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def refused(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """Run a command line that must end with exit code 2; return what it says."""

    def run(*args: str, **environment: str) -> str:
        process = start(*args, **environment)
        _, said = process.communicate(timeout=50)
        assert process.returncode == 2, said
        assert "Traceback" not in said
        return said

    return run
