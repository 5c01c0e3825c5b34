"""`mixharness engine start`, and the engine that attaches to it: the contract of engines."""

import socket
import subprocess
import sys

import pytest

from mixharness.testing.contracts import EngineContract
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

MIXHARNESS = [sys.executable, "-c", "from mixharness.cli import main; main()"]
RUN = """
[[harness]]
name = "agentloop"
[[task_source]]
name = "office"
[policy]
model = "{model}"
context = 1024
[engine]
name = "vllm"
python = "{python}"
cache_mb = 64
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory, old_folder, server_python):
    """The URL of a server on a port; each engine that attaches to it brings its weights."""
    run_file = tmp_path_factory.mktemp("servers") / "run.toml"
    run_file.write_text(RUN.format(model=old_folder, python=server_python))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*MIXHARNESS, "engine", "start", str(run_file), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{port}"
    said = []
    while url not in said:
        said.append(process.stdout.readline().strip())
        assert process.poll() is None, said
    yield url
    process.terminate()
    process.communicate(timeout=60)
    with socket.socket() as connection:  # nothing listens any more
        assert connection.connect_ex(("127.0.0.1", port)) != 0


class TestAttachedVllm(EngineContract):
    @pytest.fixture
    def component(self, url, old_folder):
        return VllmEngine(VllmConfig(model=str(old_folder), urls=(url,)))

    @pytest.fixture
    def weights(self, new_folder):
        return new_folder
