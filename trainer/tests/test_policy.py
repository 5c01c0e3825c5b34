import json

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig
from mixharness_trainer.policy import Policy, PolicyShape, new_policy, weight_hash

SMALL = PolicyShape(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48, context=128)


def test_new_policy_loads_everywhere_and_depends_on_the_seed_alone(tmp_path, tokenizer):
    state = torch.get_rng_state()

    folders = [
        new_policy(tmp_path / name, tokenizer, SMALL, seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]

    policies = [Policy.load(folder, lr=1e-3, device="cpu") for folder in folders]
    hashes = [weight_hash(policy) for policy in policies]
    assert torch.equal(torch.get_rng_state(), state)
    assert hashes[0] == hashes[1] != hashes[2]
    config = AutoConfig.from_pretrained(folders[0])
    assert (config.model_type, config.tie_word_embeddings, config.eos_token_id) == (
        "qwen3",
        True,
        1,
    )
    assert AutoTokenizer.from_pretrained(folders[0]).eos_token == "<|im_end|>"
    generation = GenerationConfig.from_pretrained(folders[0])
    assert (generation.temperature, generation.top_p, generation.top_k) == (1.0, 1.0, 0)
    head, embedding = (
        policies[0].model.get_output_embeddings().weight,
        policies[0].model.get_input_embeddings().weight,
    )
    assert head is embedding


def test_default_shape_has_about_a_million_parameters(tmp_path, tokenizer):
    new_policy(tmp_path, tokenizer, PolicyShape(), seed=0)

    policy = Policy.load(tmp_path, lr=1e-3, device="cpu")

    assert 0.7e6 < sum(p.numel() for p in policy.model.parameters()) < 1.3e6


def test_saved_folder_is_the_same_policy_for_plain_transformers(tmp_path, tokenizer):
    new_policy(tmp_path / "new", tokenizer, SMALL, seed=0)
    policy = Policy.load(tmp_path / "new", lr=1e-3, device="cpu")

    policy.save(tmp_path / "saved")

    ids = torch.tensor([[3, 4, 5, 6]])
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.allclose(plain(ids).logits, policy.model(ids).logits, atol=1e-5)
    assert (tmp_path / "saved" / "model.safetensors").exists()
    again = Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert again.get_vocab() == tokenizer.get_vocab()
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "mixharness" not in json.dumps(config)


def test_a_policy_is_equipped_with_what_the_optimizer_reads(tmp_path, tokenizer):
    folder = new_policy(tmp_path, tokenizer, SMALL, seed=0)
    policy = Policy.load(folder, lr=1e-3, device="cpu")
    as_begun = policy.model.lm_head.weight.detach().clone()

    policy.equip(Grpo(GrpoConfig()), folder)
    assert (policy.reference, policy.critic) == (None, None)
    with torch.no_grad():
        policy.model.lm_head.weight += 1
    policy.equip(Grpo(GrpoConfig(beta=0.1)), folder)
    policy.equip(Ppo(PpoConfig()), folder)

    assert torch.equal(policy.reference.lm_head.weight, as_begun)
    assert not any(parameter.requires_grad for parameter in policy.reference.parameters())
    attention = policy.model.config._attn_implementation
    assert policy.reference.config._attn_implementation == attention
    assert torch.equal(policy.critic.trunk.embed_tokens.weight, as_begun + 1)
    assert policy.critic.settings == Ppo(PpoConfig()).critic


def test_tokenizer_without_an_end_of_turn_is_refused(tmp_path):
    from tokenizers.models import WordLevel

    with pytest.raises(ValueError, match=r"<\|im_end\|>"):
        new_policy(tmp_path, Tokenizer(WordLevel({"a": 0}, unk_token="a")), SMALL, seed=0)
