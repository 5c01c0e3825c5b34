"""A training run in two harnesses, one of them the real Claude Code, with vLLM as the engine."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mixharness import ComponentConfig, Score, Verifier, hookimpl
from mixharness.config import load_run_file
from mixharness.plugins import load_plugins
from mixharness.runs import load_rollouts
from mixharness_trainer.train import train

pytestmark = [pytest.mark.vllm, pytest.mark.claude_code, pytest.mark.slow, pytest.mark.anyio]

RUN = """
seed = 2
[[harness]]
name = "agentloop"
tools = ["bash"]
[[harness]]
name = "claude_code"
tools = ["Bash"]
system_prompt = "You do office work."
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 2
[[task_source]]
name = "jsonl"
path = "{folder}/tasks.jsonl"
[engine]
name = "vllm"
python = "{python}"
on_update = "keep"
cache_mb = 64
[sampling]
max_tokens = 8
[limits]
max_turns = 2
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
captures = 2
layers = 1
hidden = 64
heads = 2
intermediate = 64
epochs = 1
[optimizer]
name = "grpo"
[trainer]
steps = 2
tasks_per_step = 2
group_size = 3
lr = 0.01
"""


class Coin(Verifier[ComponentConfig]):
    """Score by the parity of what was sampled, so that chance teaches."""

    name = "coin"

    async def score(self, task, rollout, workspace):
        ids = [token for call in rollout.calls for token in call.sampled_ids]
        return Score(value=float(sum(ids) % 2))


async def test_a_run_in_two_harnesses_trains_syncs_and_samples_with_each_version(
    server_python, tmp_path
):
    registry = load_plugins(SimpleNamespace(register_verifiers=hookimpl(lambda: [Coin])))
    tasks = [{"id": f"t{n}", "prompt": "Go on.", "verifier": "coin"} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    (tmp_path / "run.toml").write_text(RUN.format(folder=tmp_path, python=server_python))
    run_dir = tmp_path / "run"
    await train(load_run_file(tmp_path / "run.toml", registry), registry, run_dir)

    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [step["policy_version"] for step in steps] == [1, 2]
    # Of the policy, which has learned nothing; none of the engine.
    assert {kind for step in steps for kind in step["failures_by_kind"]} <= {"max_turns"}
    size = (run_dir / "weights/000002/model.safetensors").stat().st_size
    assert [(s["weights_taken"], s["sync/bytes"]) for s in steps] == [(True, size)] * 2
    assert min(step["time/sync_s"] for step in steps) > 0
    # What the server said of its tokens is what the trainer finds: for step 2, after a real sync.
    assert max(step["logp_gap/mean_abs_lag_0"] for step in steps) <= 1e-3
    for rollout in load_rollouts(run_dir):
        if rollout.id.startswith("step-"):
            sampled_by = {span.version for call in rollout.calls for span in call.versions}
            assert sampled_by == {int(rollout.id[5:9]) - 1}
    first = load_file(run_dir / "policy/model.safetensors")
    last = load_file(run_dir / "checkpoint/model.safetensors")
    assert any(not torch.equal(first[name], last[name]) for name in first)
