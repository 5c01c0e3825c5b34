"""The loop with real parts: what it changes and what not."""

import json

import pytest
import torch
from safetensors.torch import load_file

from mixharness.config import load_run_file
from mixharness.errors import ConfigError
from mixharness.plugins import load_plugins
from mixharness_trainer.checkpoint import load_checkpoint
from mixharness_trainer.train import train

RUN = """
[[harness]]
name = "agentloop"
tools = ["bash"]
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 2
[[task_source]]
name = "office"
count = 3
[engine]
name = "scripted"
script = "mixharness_office.demonstrations:demonstrate_expert"
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
captures = 2
layers = 1
hidden = 32
heads = 2
intermediate = 64
epochs = 1
[optimizer]
name = "sft"
[trainer]
steps = 2
tasks_per_step = 2
group_size = 1
"""


@pytest.fixture(scope="module")
def registry():
    return load_plugins()


@pytest.fixture
def load(tmp_path, registry):
    def config(text: str = RUN, **overrides):
        (tmp_path / "run.toml").write_text(text)
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        return load_run_file(tmp_path / "run.toml", registry, dotted)

    return config


@pytest.mark.anyio
@pytest.mark.parametrize("lr", [0.0, 1e-3])
async def test_learning_rate_0_leaves_every_weight(load, registry, tmp_path, lr):
    run_dir = tmp_path / "run"
    summary = await train(load(trainer__lr=lr), registry, run_dir)
    first = load_file(run_dir / "policy/model.safetensors")
    last = load_file(run_dir / "checkpoint/model.safetensors")
    assert first.keys() == last.keys()
    assert all(torch.equal(first[name], last[name]) for name in first) == (lr == 0.0)
    steps = [json.loads(x) for x in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(step["lr"], step["policy_version"]) for step in steps] == [(lr, 1), (lr, 2)]
    assert all(step["grad_norm"] > 0 for step in steps)
    assert summary["steps"] == 2


@pytest.mark.anyio
async def test_with_staleness_a_run_takes_as_many_steps_and_says_how_old_its_groups_are(
    load, registry, tmp_path
):
    run_dir = tmp_path / "run"
    summary = await train(load(trainer__max_staleness=1, trainer__steps=3), registry, run_dir)
    steps = [json.loads(x) for x in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(step["groups"], step["policy_version"]) for step in steps] == [(2, 1), (2, 2), (2, 3)]
    assert [step["staleness/max"] <= 1 for step in steps] == [True] * 3
    assert summary["stale_groups"] == sum(step["stale_groups"] for step in steps)
    assert summary["harnesses"]["agentloop"]["stale_groups"] == summary["stale_groups"]


@pytest.mark.anyio
async def test_grpo_on_made_up_logprobs_is_refused_before_any_rollout(load, registry, tmp_path):
    with pytest.raises(ConfigError) as refused:
        await train(load(optimizer__name="grpo"), registry, tmp_path / "run")
    where, message = refused.value.problems[0]
    assert where == "optimizer.name"
    assert message.startswith('"grpo" needs real log-probs, but engine "scripted" makes them up')
    assert not (tmp_path / "run").exists()


SOLVED = """
[[task_source]]
name = "jsonl"
path = "{path}"
[sampling]
max_tokens = 12
[limits]
max_turns = 2
"""


@pytest.mark.anyio
@pytest.mark.slow
async def test_ppo_from_rollouts_to_a_checkpoint_with_its_critic(load, registry, tmp_path):
    """One rollout a task. The answer lies there already, so that the untrained earn a reward."""
    line = {"prompt": "Leave everything as it is.", "files": {"answer.txt": "42"}}
    lines = [json.dumps(line | {"id": str(n), "answer": {"text": "42"}}) for n in range(3)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    text = RUN.replace('[[task_source]]\nname = "office"\ncount = 3\n', "")
    text = text.replace('name = "scripted"', 'name = "hf"\ncache_mb = 16')
    text = text.replace('script = "mixharness_office.demonstrations:demonstrate_expert"\n', "")
    text += SOLVED.format(path=tmp_path / "tasks.jsonl")
    run_dir = tmp_path / "run"

    await train(load(text, optimizer__name="ppo"), registry, run_dir)

    steps = [json.loads(x) for x in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [step["reward/agentloop"] for step in steps] == [1.0, 1.0]
    assert [(step["groups"], step["groups_dropped"]) for step in steps] == [(2, 0), (2, 0)]
    assert all(0 < step["logp_gap/mean_abs"] < 1e-4 and step["tokens"] > 0 for step in steps)
    # In the first step the critic learns alone, from values of 0; then both do.
    assert [step["critic/pretraining"] for step in steps] == [1, 0]
    assert steps[0]["critic/value"] == steps[0]["grad_norm"] == 0
    assert steps[1]["critic/value"] > 0
    assert min(steps[1]["grad_norm"], steps[1]["critic/grad_norm"]) > 0
    policy, state = load_checkpoint(run_dir / "checkpoint", device="cpu")
    assert state.critic.updates == policy.critic.updates == 2
    assert policy.critic.adamw.state[policy.critic.head.bias]["step"].item() == 4 + 1
