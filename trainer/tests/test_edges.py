import pytest
import torch
from transformers import (
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from mixharness.errors import ConfigError
from mixharness_trainer.attention import Layout, ancestor_mask, layout_for
from mixharness_trainer.edges import edge_states, edge_values, head_divergence
from mixharness_trainer.packing import Member, pack


def test_temperature_divides_the_logits_of_its_own_edge(model, tree):
    built = tree("r", [(-1, "e", 4), (0, "s", 3), (0, "s", 2)])  # sampled at 0.7 and 1.0
    tested = model()
    (batch,) = pack([[Member(rollout_id="r", tree=built, advantages=[0.0] * 5)]], max_tokens=100)

    with torch.no_grad():
        logp, entropy = edge_values(tested, batch, Layout.TREE)
        first = list(built.nodes[0].ids)
        logits = tested(input_ids=torch.tensor([first])).logits[0, -1]

    for edge, temperature in ((0, 0.7), (3, 1.0)):
        row = (logits / temperature).log_softmax(-1)
        assert logp[edge].item() == pytest.approx(row[batch.target_E[edge]].item(), abs=1e-5)
        assert entropy[edge].item() == pytest.approx(-(row.exp() * row).sum().item(), abs=1e-5)


def test_head_sees_predicting_positions_only(model, tree):
    built = tree("r", [(-1, "e", 40), (0, "s", 3)])
    tested = model()
    seen = []
    tested.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(len(inputs[0]))
    )

    batches = pack([[Member(rollout_id="r", tree=built, advantages=[0.0] * 3)]], max_tokens=100)
    edge_values(tested, batches[0], Layout.TREE)

    assert seen == [3]


def test_divergence_from_a_reference_by_the_definition(model, tree, monkeypatch):
    built = tree("r", [(-1, "e", 4), (0, "s", 3), (0, "s", 2)])  # sampled at 0.7 and 1.0
    tested, reference = model(), model(seed=3).requires_grad_(False)
    (batch,) = pack([[Member(rollout_id="r", tree=built, advantages=[0.0] * 5)]], max_tokens=100)

    def divergence():
        states = [edge_states(one, batch, Layout.TREE) for one in (tested, reference)]
        return head_divergence(tested, states[0], reference, states[1], batch)

    whole = divergence()
    ids = torch.tensor([built.nodes[0].ids])
    last = [one(input_ids=ids).logits[0, -1].detach() for one in (tested, reference)]
    for edge, temperature in ((0, 0.7), (3, 1.0)):
        p, q = ((logits / temperature).double().softmax(-1) for logits in last)
        assert whole[edge].item() == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-5)
    whole.sum().backward()
    gradient = tested.model.embed_tokens.weight.grad.clone()
    tested.zero_grad()
    monkeypatch.setattr("mixharness_trainer.edges.CHUNK_LOGITS", 64 * 2)
    chunked = divergence()
    chunked.sum().backward()
    assert torch.allclose(chunked, whole)
    assert torch.allclose(tested.model.embed_tokens.weight.grad, gradient, rtol=1e-4, atol=1e-5)


def test_ancestor_mask_of_a_fork():
    mask = ancestor_mask(torch.tensor([4, 2, 4, 4]))[0, 0].int().tolist()

    assert mask == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]


@pytest.mark.parametrize(
    ("config", "layout", "reason"),
    [
        (Qwen3Config(), Layout.TREE, "full attention"),
        (LlamaConfig(), Layout.TREE, "full attention"),
        (Qwen3MoeConfig(), Layout.TREE, "full attention"),
        (Qwen3NextConfig(), Layout.PATHS, "linear_attention"),
        (MambaConfig(), Layout.PATHS, "state carried"),
        (MistralConfig(sliding_window=4096), Layout.PATHS, "sliding"),
        (GptOssConfig(), Layout.PATHS, "sliding_attention"),
        (
            LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            Layout.PATHS,
            "length of the row",
        ),
    ],
)
def test_layout_follows_from_the_config(config, layout, reason):
    chosen, why = layout_for(config)

    assert chosen is layout
    assert reason in why


def test_router_loss_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="set output_router_logits = false"):
        layout_for(Qwen3MoeConfig(output_router_logits=True))
