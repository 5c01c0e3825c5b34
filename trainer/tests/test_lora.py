"""Adapters in place of weights: what is trained, what is saved, and what an engine is given."""

import anyio
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.proxy.gate import Gate
from mixharness_trainer.checkpoint import load_checkpoint, save_checkpoint
from mixharness_trainer.lora import Lora
from mixharness_trainer.lora_files import is_adapter
from mixharness_trainer.optimizers.grpo import Grpo, GrpoConfig
from mixharness_trainer.policy import Policy, PolicyShape, new_policy, optimizer_hash, weight_hash
from mixharness_trainer.update import UpdateSettings, update
from mixharness_trainer.weights import publish

SMALL = PolicyShape(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48, context=128)
LORA = Lora(rank=4, alpha=8.0)
GRPO = Grpo(GrpoConfig())


@pytest.fixture
def base(tmp_path, tokenizer):
    return new_policy(tmp_path / "base", tokenizer, SMALL, seed=0)


@pytest.fixture
def policy(base):
    torch.manual_seed(0)
    return Policy.load(base, lr=1e-2, device="cpu", lora=LORA)


@torch.no_grad()
def logits(model):
    model.set_attn_implementation("sdpa")
    return model(torch.arange(20)[None]).logits


def test_new_adapters_change_nothing_and_are_all_that_learns(base, policy, mixed_groups):
    plain = AutoModelForCausalLM.from_pretrained(base)
    # 2 layers of 7 matrices, A of rank x inputs and B of outputs x rank, counted by hand:
    # q 32->32, k and v 32->16, o 32->32, gate and up 32->48, down 48->32.
    inputs_and_outputs = 2 * (64 + 2 * 48 + 64 + 2 * 80 + 80)
    assert sum(p.numel() for p in policy.trained) == LORA.rank * inputs_and_outputs
    frozen = {n: p.detach().clone() for n, p in policy.model.named_parameters() if "lora" not in n}

    metrics = update(policy, mixed_groups, GRPO, UpdateSettings(gradient_cosine_every=1))

    assert metrics["grad_norm"] > 0
    assert any(key.startswith("gradient_cosine/") for key in metrics)
    now = dict(policy.model.named_parameters())
    assert all(torch.equal(now[name], before) for name, before in frozen.items())
    assert (logits(policy.model) - logits(plain)).abs().max() > 1e-3


# peft asks transformers by an older name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_what_is_saved_computes_what_is_trained(tmp_path, base, policy, mixed_groups):
    update(policy, mixed_groups, GRPO, UpdateSettings())
    policy.save(tmp_path / "merged")
    policy.save_adapter(tmp_path / "adapter")

    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    on_base = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), str(tmp_path / "adapter")
    )

    assert (logits(whole) - logits(policy.model)).abs().max() < 1e-5
    assert torch.equal(logits(on_base), logits(policy.model))


def test_resumed_run_continues_identically(tmp_path, base, policy, mixed_groups):
    update(policy, mixed_groups, GRPO, UpdateSettings())
    save_checkpoint(policy, tmp_path / "checkpoint")

    resumed, _ = load_checkpoint(tmp_path / "checkpoint", device="cpu", base=base, lora=LORA)

    for one in (policy, resumed):
        update(one, mixed_groups, GRPO, UpdateSettings())
    assert weight_hash(resumed) == weight_hash(policy)
    assert optimizer_hash(resumed) == optimizer_hash(policy)


class AdapterTaker(ScriptedEngine):
    """Notes what it is given."""

    takes_adapters = True

    async def load_weights(self, source, policy_version):
        self.given = sorted(path.name for path in source.iterdir())
        await super().load_weights(source, policy_version)


def test_an_engine_that_takes_adapters_gets_them_alone(tmp_path, policy):
    engine = AdapterTaker(ScriptedConfig(turns=("done",)))

    done = anyio.run(lambda: publish(policy, engine, Gate(), tmp_path / "weights", version=1))

    assert engine.given == ["adapter_config.json", "adapter_model.safetensors"]
    assert is_adapter(done.folder)
    assert done.num_bytes == (done.folder / "adapter_model.safetensors").stat().st_size
