"""Whole runs in two harnesses: with a reference, with a critic on the policy's trunk, one left out.

The verifier tosses a coin, so that a policy that has learned nothing meets contrast.
"""

import json
from collections import defaultdict
from types import SimpleNamespace

import pytest

from mixharness import ComponentConfig, Score, Verifier, hookimpl
from mixharness.config import load_run_file
from mixharness.plugins import load_plugins
from mixharness.runs import load_rollouts
from mixharness_trainer.train import train

RUN = """
seed = 2
[[harness]]
name = "agentloop"
tools = ["bash"]
[[harness]]
name = "agentloop"
label = "terse"
tools = ["bash"]
system_prompt = "Say little."
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 2
[[task_source]]
name = "jsonl"
path = "{folder}/tasks.jsonl"
[[task_source]]
name = "jsonl"
path = "{folder}/held_out.jsonl"
use = "eval"
[engine]
name = "hf"
cache_mb = 16
[sampling]
max_tokens = 8
[limits]
max_turns = 2
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
captures = 2
layers = 1
hidden = 32
heads = 2
intermediate = 64
epochs = 1
[optimizer]
name = "{optimizer}"
[trainer]
steps = 2
tasks_per_step = 2
group_size = 3
lr = 0.01
gradient_cosine_every = 1
"""
PAIR = "gradient_cosine/agentloop/terse"


class Coin(Verifier[ComponentConfig]):
    """Score by the parity of what was sampled."""

    name = "coin"

    async def score(self, task, rollout, workspace):
        ids = [token for call in rollout.calls for token in call.sampled_ids]
        return Score(value=float(sum(ids) % 2))


@pytest.fixture(scope="module")
def registry():
    plugin = SimpleNamespace(register_verifiers=hookimpl(lambda: [Coin]))
    return load_plugins(plugin)


@pytest.fixture
def run(tmp_path, registry):
    async def start(optimizer, **overrides):
        lines = [{"id": f"t{n}", "prompt": "Go on.", "verifier": "coin"} for n in range(5)]
        (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines[:4])))
        (tmp_path / "held_out.jsonl").write_text(json.dumps(lines[4]))
        file = tmp_path / "run.toml"
        file.write_text(RUN.format(folder=tmp_path, optimizer=optimizer))
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        summary = await train(load_run_file(file, registry, dotted), registry, tmp_path / "run")
        lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
        return summary, [json.loads(line) for line in lines], load_rollouts(tmp_path / "run")

    return start


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_harness_left_out_is_evaluated_and_never_trained(run):
    """And the reference is the policy as the loop began: no distance at first, some later."""
    overrides = {"harness__terse__weight": 0.0, "optimizer__beta": 0.1}
    overrides |= {"trainer__resample_zero_variance": 1, "trainer__group_size": 2}
    summary, steps, rollouts = await run("grpo", **overrides)

    held_out, stages = {"eval-before", "eval-after"}, defaultdict(set)
    for rollout in rollouts:
        stages[rollout.key.harness].add(rollout.id.split("-t")[0].split("-fresh")[0])
    assert stages == {"agentloop": held_out | {"step-0001", "step-0002"}, "terse": held_out}
    replaced = sum(step["dropped"].get("no_contrast", 0) for step in steps)
    assert replaced == sum("-fresh-" in rollout.id for rollout in rollouts) > 0
    rows = summary["harnesses"]
    assert (rows["agentloop"]["trained"], rows["terse"]["trained"]) == (True, False)
    assert rows["terse"]["held_out_tasks"] == 1
    assert abs(steps[0]["kl_ref"]) < 1e-6 < steps[1]["kl_ref"]
    assert PAIR not in steps[0]


@pytest.mark.anyio
@pytest.mark.slow
async def test_ppo_with_a_shared_trunk_by_weight(run):
    overrides = {"optimizer__critic": "shared", "harness__terse__weight": 3.0}
    overrides |= {"trainer__group_size": 1, "trainer__epochs": 2, "eval__before": False}
    summary, steps, rollouts = await run("ppo", **overrides)

    assert [(s["groups/agentloop"], s["groups/terse"]) for s in steps] == [(1, 3), (1, 3)]
    assert [step["critic/pretraining"] for step in steps] == [1, 0]
    assert min(steps[1]["grad_norm"], steps[1]["critic/grad_norm"]) > 0
    assert PAIR not in steps[0]  # in its pretraining, the critic learns alone
    assert summary["gradient_cosine"] == {"agentloop/terse": steps[1][PAIR]}
    assert -1 < steps[1][PAIR] < 1
    scored = {rollout.id for rollout in rollouts if rollout.id.startswith("eval")}
    assert scored == {"eval-after-t4-agentloop-0", "eval-after-t4-terse-0"}
    row = summary["harnesses"]["terse"]
    assert (row["before"], row["diff"], row["held_out_tasks"]) == (None, None, 0)
    assert row["after"] in (0.0, 1.0)
