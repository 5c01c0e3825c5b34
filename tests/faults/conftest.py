"""The command line, in a process of its own or in this one, and where its sandboxes live."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mixharness.cli.main import run

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
        own["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "torch")  # torch's, made on import
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
def refused(
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Run a command line in this process; it must end with exit code 2. Return what it says."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.chdir(tmp_path)

    def refuse(*args: str, **environment: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = run(args)
        said = capsys.readouterr().err
        assert code == 2, said
        return said

    return refuse
