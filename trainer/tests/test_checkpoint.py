import math

import pytest
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from mixharness.errors import ConfigError
from mixharness_trainer.checkpoint import (
    LoopState,
    load_checkpoint,
    remove_unfinished,
    save_checkpoint,
)
from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig
from mixharness_trainer.policy import Policy, PolicyShape, new_policy, optimizer_hash, weight_hash
from mixharness_trainer.update import UpdateSettings, update

SMALL = PolicyShape(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48, context=128)
GRPO = Grpo(GrpoConfig())


@pytest.fixture
def trained(tmp_path, tokenizer, mixed_groups):
    folder = new_policy(tmp_path / "new", tokenizer, SMALL, seed=0)
    policy = Policy.load(folder, lr=1e-2, weight_decay=0.01, device="cpu")
    update(policy, mixed_groups, GRPO, UpdateSettings())
    return policy


def test_resumed_run_continues_identically(tmp_path, trained, mixed_groups):
    trained.version = 5
    trained.gap_alarm.history[:] = [0.3, math.nan]
    loop = LoopState(step=3, history=[{"loss": math.inf, "dropped": {}}], wall_s=1.5)
    save_checkpoint(trained, tmp_path / "checkpoint", render_rules=["drop_header@1"], loop=loop)
    settings = UpdateSettings(minibatches=2, epochs=2)
    figures = update(trained, mixed_groups, GRPO, settings)

    resumed, state = load_checkpoint(tmp_path / "checkpoint", device="cpu")

    assert (resumed.step, resumed.version, resumed.lr) == (1, 5, 1e-2)
    assert resumed.gap_alarm.history == pytest.approx([0.3, math.nan], nan_ok=True)
    assert (state.render_rules, state.loop) == (["drop_header@1"], loop)
    assert update(resumed, mixed_groups, GRPO, settings) == figures
    assert weight_hash(resumed) == weight_hash(trained)
    assert optimizer_hash(resumed) == optimizer_hash(trained)


@pytest.mark.parametrize("trunk", ["separate", "shared"])
def test_resumed_critic_continues_identically(tmp_path, tokenizer, mixed_groups, trunk):
    folder = new_policy(tmp_path / "new", tokenizer, SMALL, seed=0)
    policy = Policy.load(folder, lr=1e-2, device="cpu")
    optimizer = Ppo(PpoConfig(critic=trunk, critic_lr=3e-3, value_pretraining_steps=1))
    policy.equip(optimizer, folder)
    update(policy, mixed_groups, optimizer, UpdateSettings())
    save_checkpoint(policy, tmp_path / "checkpoint")
    expected = optimizer_hash(policy)

    resumed, _ = load_checkpoint(tmp_path / "checkpoint", device="cpu")
    resumed.equip(optimizer, folder)

    assert resumed.critic.settings == optimizer.critic
    assert optimizer_hash(resumed) == expected
    for one in (policy, resumed):
        metrics = update(one, mixed_groups, optimizer, UpdateSettings())
        assert metrics["critic/pretraining"] == 0
    assert weight_hash(resumed) == weight_hash(policy)
    assert optimizer_hash(resumed) == optimizer_hash(policy) != expected


def test_checkpoint_is_replaced_whole_and_older_ones_go(tmp_path, trained):
    save_checkpoint(trained, tmp_path / "checkpoint")
    first = (tmp_path / "checkpoint").resolve()
    save_checkpoint(trained, tmp_path / "checkpoint")

    assert not first.exists()
    there = set(tmp_path.glob("checkpoint*"))
    assert len(there) == 2  # the link and what it points to
    (tmp_path / "checkpoint-000002-killed").mkdir()
    remove_unfinished(tmp_path / "checkpoint")
    assert set(tmp_path.glob("checkpoint*")) == there


def test_failed_save_leaves_the_older_checkpoint(tmp_path, trained):
    save_checkpoint(trained, tmp_path / "checkpoint")
    saved = weight_hash(trained)

    with pytest.raises(ValidationError):
        save_checkpoint(trained, tmp_path / "checkpoint", loop=5)

    resumed, _ = load_checkpoint(tmp_path / "checkpoint", device="cpu")
    assert weight_hash(resumed) == saved


def test_checkpoint_is_a_model_folder_without_pickle(tmp_path, trained):
    save_checkpoint(trained, tmp_path / "checkpoint")

    files = {path.name for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()}
    assert "tokenizer.json" in files
    assert {name for name in files if not name.endswith((".json", ".safetensors"))} == set()
    AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")


def test_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        load_checkpoint(tmp_path, device="cpu")
