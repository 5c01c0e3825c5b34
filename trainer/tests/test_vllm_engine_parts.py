"""What of the engine `vllm` needs no vLLM: its command line, what it reads, what it refuses."""

import re
import subprocess
import sys
import time
import tomllib
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from mixharness.errors import EngineError
from mixharness.types import VersionSpan
from mixharness_trainer.engines.vllm import guard
from mixharness_trainer.engines.vllm.client import ServerLost, read_generation
from mixharness_trainer.engines.vllm.config import VllmConfig
from mixharness_trainer.engines.vllm.engine import VllmEngine
from mixharness_trainer.engines.vllm.server import Launch


def answer(ids=(5, 6), of=(5, 6), logprob=-0.5, spans=((3, 0, 2),), reason="length"):
    entries = [{"token_id": token, "logprob": logprob, "rank": 1} for token in of]
    choice = {
        "token_ids": list(ids),
        "logprobs": {"content": entries},
        "weight_versions": [{"version": str(v), "start": a, "end": b} for v, a, b in spans],
        "finish_reason": reason,
    }
    return {"choices": [choice]}


def test_an_answer_becomes_a_generation() -> None:
    found = read_generation(answer(spans=((2, 0, 1), (3, 1, 2))), "r")
    assert (found.ids, found.logprobs, found.finish_reason) == ((5, 6), (-0.5, -0.5), "length")
    assert found.versions == (VersionSpan(2, 0, 1), VersionSpan(3, 1, 2))
    assert read_generation(answer(ids=(), of=(), spans=(), reason="abort"), "r").ids == ()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"of": (5,)}, EngineError, "1 log-probs for 2 ids"),
        ({"of": (6, 5)}, EngineError, "another order"),
        ({"logprob": -9999.0}, EngineError, "does not know a log-prob"),
        ({"spans": ((3, 0, 1),)}, EngineError, "does not say which weights"),
        ({"spans": (("default", 0, 2),)}, ServerLost, "has no weights of ours"),
        ({"reason": "error"}, EngineError, "ended request r with 'error'"),
        ({"ids": (), "of": (), "spans": ()}, EngineError, "ended request r with 'length'"),
    ],
)
def test_an_answer_that_breaks_the_contract_is_an_error(wrong, error, message) -> None:
    with pytest.raises(error, match=message):
        read_generation(answer(**wrong), "r")


def test_the_command_line_keeps_the_distribution_contract(tmp_path) -> None:
    config = VllmConfig(model="/m", python="/p", context=512, flags=("--block-size", "32"))
    launch = Launch(config=config, number=0, bind=("--uds", "/s"), log=tmp_path / "log")
    command = launch.command(on_cpu=True)
    pairs = dict(pairwise(command))
    assert command[:3] == ["/p", "-m", "vllm.entrypoints.openai.api_server"]
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert pairs["--generation-config"] == "vllm"  # none of the model's own top_p and the like
    assert pairs["--weight-transfer-config"] == '{"backend": "mixharness_file"}'
    given = (pairs["--dtype"], pairs["--max-model-len"], pairs["--block-size"])
    assert given == ("float32", "512", "32")
    assert "bfloat16" in launch.command(on_cpu=False)


def test_each_replica_sees_its_own_devices(tmp_path) -> None:
    config = VllmConfig(model="/m", replicas=2, devices=("0", "1,2"), sync="ipc")
    seen = [Launch(config=config, number=n, bind=(), log=tmp_path).environment() for n in range(2)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in seen] == ["0", "1,2"]
    assert seen[0]["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"flags": ("--logprobs-mode=raw_logprobs",)}, "the engine sets them"),
        ({"urls": ("http://a:1",), "replicas": 2}, "set `urls` to attach"),
        ({"replicas": 2, "devices": ("0",)}, "2 replicas need 2 `devices`"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys, message) -> None:
    with pytest.raises(ValueError, match=message):
        VllmConfig(**keys)


def test_the_page_shows_run_files_that_are_right() -> None:
    page = (Path(__file__).parents[2] / "docs/vllm.md").read_text()
    blocks = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert len(blocks) == 3
    for block in blocks:
        engine = block["engine"]
        assert engine.pop("name") == "vllm"
        VllmConfig(**engine)


@pytest.mark.anyio
async def test_a_server_that_dies_at_once_is_reported_with_its_last_words(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\necho out of luck >&2; exit 3\n")
    stub.chmod(0o755)
    with pytest.raises(EngineError, match=r"no \*\.safetensors"):
        await VllmEngine(VllmConfig(model=str(tmp_path), python=str(stub))).start()
    (tmp_path / "model.safetensors").write_bytes(TENSOR)
    engine = VllmEngine(VllmConfig(model=str(tmp_path), python=str(stub)))
    with pytest.raises(EngineError, match=r"status 3 before it was ready(.|\n)*out of luck"):
        await engine.start()
    await engine.stop()


HEADER = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
TENSOR = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)


def test_a_server_and_what_it_started_end_with_their_runner(tmp_path) -> None:
    said = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {said}.new; mv {said}.new {said}; wait"
    program = (
        "import subprocess, sys; "
        f"subprocess.Popen([sys.executable, '-I', {guard.__file__!r}, 'sh', '-c', {script!r}], "
        "stdin=subprocess.PIPE); sys.stdin.read()"
    )
    runner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    processes = [psutil.Process(pid) for pid in _pids_in(said)]
    runner.kill()
    runner.wait()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert runner.stdin is not None
    runner.stdin.close()


def _pids_in(file: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < deadline, f"nothing wrote {file}"
        time.sleep(0.02)
    return [int(word) for word in file.read_text().split()]
