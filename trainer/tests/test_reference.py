"""Proof: a packed batch gives what separate paths give (TOKENS_AND_TREES section 6).

The reference knows nothing of packing: it runs every root-to-leaf path through the model's own
forward, takes each trained token on the first path that holds it, and sums the loss by hand.
"""

from dataclasses import replace

import pytest
import torch

from mixharness.optimizer import Edges
from mixharness_trainer import attention as attention_module
from mixharness_trainer.attention import TREE_ATTENTION, Layout
from mixharness_trainer.edges import edge_values
from mixharness_trainer.optimizers import Grpo, GrpoConfig
from mixharness_trainer.packing import Member, PackedBatch, pack

TOLERANCE = 1e-5


def paths_of(tree):
    """Return all root-to-leaf paths of a tree as lists of nodes."""
    parents = {node.parent for node in tree.nodes}
    paths = []
    for index in range(len(tree.nodes)):
        if index not in parents:
            path, at = [], index
            while at >= 0:
                path.insert(0, at)
                at = tree.nodes[at].parent
            paths.append(path)
    return paths


def separate(model, members):
    """Return {(rollout, token): (logp, entropy)} from plain forwards over whole paths."""
    values = {}
    for member in members:
        offset, total = {}, 0
        for index, node in enumerate(member.tree.nodes):
            if node.trained:
                offset[index], total = total, total + len(node.ids)
        for path in paths_of(member.tree):
            ids = [token for index in path for token in member.tree.nodes[index].ids]
            logits = model(input_ids=torch.tensor([ids])).logits[0]
            start = 0
            for index in path:
                node = member.tree.nodes[index]
                if node.trained and (member.rollout, offset[index]) not in values:
                    for place, token in enumerate(node.ids):
                        row = (logits[start + place - 1] / node.temperature).log_softmax(-1)
                        entropy = -(row.exp() * row).sum()
                        values[member.rollout, offset[index] + place] = (row[token], entropy)
                start += len(node.ids)
    return values


def reference_loss(values, members, old):
    """GRPO as the paper writes it: a loop over rollouts and tokens, eps 0.2, cap 2."""
    total = 0.0
    for member in members:
        logps = [lp for node in member.tree.nodes if node.trained for lp in node.logprobs]
        for token, rollout_logp in enumerate(logps):
            logp = values[member.rollout, token][0]
            before = old[member.rollout, token]
            ratio, advantage = torch.exp(logp - before), member.advantages[token]
            bounded = torch.clamp(ratio, 0.8, 1.2) * advantage
            correction = min(torch.exp(before - rollout_logp).item(), 2.0)
            objective = torch.minimum(ratio * advantage, bounded)
            total = total - member.weight * correction * objective
    return total


@pytest.fixture
def members(mixed_groups):
    made = []
    for group in mixed_groups:
        rows = []
        for rollout, tree in zip(group.rollouts, group.trees, strict=True):
            number = sum(map(len, made)) + len(rows)
            advantages = [0.3 * number - 0.7] * tree.trained_tokens
            weight = 0.1 + 0.05 * number
            rows.append(
                Member(
                    rollout_id=rollout.id,
                    tree=tree,
                    advantages=advantages,
                    rollout=number,
                    weight=weight,
                )
            )
        made.append(rows)
    return made


def packed(model, batch: PackedBatch, layout=Layout.TREE):
    logp, entropy = edge_values(model, batch, layout)
    keys = zip(batch.rollout_E.tolist(), batch.token_E.tolist(), strict=True)
    return {key: (logp[i], entropy[i]) for i, key in enumerate(keys)}


def packed_loss(model, batch: PackedBatch, old, layout=Layout.TREE):
    logp, entropy = edge_values(model, batch, layout)
    keys = zip(batch.rollout_E.tolist(), batch.token_E.tolist(), strict=True)
    edges = Edges(
        logp=logp,
        logp_old=torch.tensor([old[key].item() for key in keys]),
        logp_rollout=batch.logp_rollout_E,
        logp_ref=None,
        entropy=entropy,
        advantage=batch.advantage_E,
        weight=batch.weight_E,
        rollout=batch.rollout_E,
    )
    return Grpo(GrpoConfig()).loss(edges).loss


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten().clone() for p in model.parameters()])


def relative(left, right):
    return ((left - right).norm() / right.norm()).item()


def expectation(model, members):
    flat = [member for row in members for member in row]
    values = separate(model, flat)
    # π_old is another policy, near enough that some ratios are clipped and some are not.
    noise = torch.Generator().manual_seed(3)
    old = {
        key: value[0].detach() + 0.3 * torch.randn((), generator=noise)
        for key, value in values.items()
    }
    loss = reference_loss(values, flat, old)
    return values, old, loss


@pytest.mark.parametrize("attention", [TREE_ATTENTION, "sdpa", "eager"])
def test_packed_equals_separate_paths(model, members, attention):
    plain = model(attention="sdpa")
    values, old, loss = expectation(plain, members)
    expected = gradient(plain, loss)
    tested = model(attention=attention)
    (batch,) = pack(members, max_tokens=10_000)

    got = packed(tested, batch)

    assert got.keys() == values.keys()
    assert len(got) == 20 + 10 + 2 + 10 + 20
    for key, (logp, entropy) in values.items():
        assert got[key][0].item() == pytest.approx(logp.item(), abs=2e-5)
        assert got[key][1].item() == pytest.approx(entropy.item(), abs=2e-5)
    tested_loss = packed_loss(tested, batch, old)
    assert tested_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert relative(gradient(tested, tested_loss), expected) <= TOLERANCE


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("max_tokens", [1, 45, 70, 10_000])
def test_gradient_does_not_depend_on_micro_batches_or_layout(model, members, layout, max_tokens):
    plain = model(attention="sdpa")
    _, old, loss = expectation(plain, members)
    expected = gradient(plain, loss)
    tested = model()

    batches = pack(members, max_tokens=max_tokens, layout=layout)
    total = sum(packed_loss(tested, batch, old, layout) for batch in batches)

    assert relative(gradient(tested, total), expected) <= TOLERANCE


def broken_mask(row):
    """Let every token see all tokens before it: branches leak into each other."""
    return replace(row, end_N=torch.full_like(row.end_N, len(row.end_N)))


def broken_depth(row):
    """Number tokens by their place in the row instead of their depth."""
    return replace(row, depth_N=torch.arange(len(row.depth_N)))


@pytest.mark.parametrize("attention", [TREE_ATTENTION, "sdpa", "eager"])
@pytest.mark.parametrize("breakage", [broken_mask, broken_depth])
def test_broken_mask_or_depth_is_noticed(model, members, attention, breakage):
    plain = model(attention="sdpa")
    _, old, loss = expectation(plain, members)
    expected = gradient(plain, loss)
    tested = model(attention=attention)
    (batch,) = pack(members, max_tokens=10_000)

    broken = replace(batch, rows=tuple(breakage(row) for row in batch.rows))

    assert relative(gradient(tested, packed_loss(tested, broken, old)), expected) > 1e-2


def test_boolean_mask_under_eager_attention_is_wrong(model, members, monkeypatch):
    """The trap that `mask_arguments` avoids: eager adds its mask; a boolean one hides nothing."""
    monkeypatch.setattr("mixharness_trainer.attention.additive", lambda mask, dtype: mask)
    plain = model(attention="sdpa")
    values, _, _ = expectation(plain, members)
    (batch,) = pack(members, max_tokens=10_000)

    got = packed(model(attention="eager"), batch)

    assert max(abs((got[key][0] - values[key][0]).item()) for key in values) > 0.1


def test_query_blocks_change_nothing(model, members, monkeypatch):
    (batch,) = pack(members, max_tokens=10_000)
    whole = packed(model(), batch)
    cut = attention_module.query_blocks
    monkeypatch.setattr(attention_module, "query_blocks", lambda end_N: cut(end_N, size=16))
    pieces = packed(model(), batch)

    blocks = cut(batch.rows[0].end_N, size=16)
    assert sum(block.mask_QK.numel() for block in blocks) < len(batch.rows[0].end_N) ** 2 / 2
    assert max(abs((pieces[key][0] - whole[key][0]).item()) for key in whole) < 1e-5


def test_logits_in_chunks_change_nothing(model, members, monkeypatch):
    (batch,) = pack(members, max_tokens=10_000)
    tested = model()
    old = {key: value[0].detach() for key, value in packed(tested, batch).items()}
    whole = gradient(tested, packed_loss(tested, batch, old))
    monkeypatch.setattr("mixharness_trainer.edges.CHUNK_LOGITS", 64 * 7)

    chunked = gradient(tested, packed_loss(tested, batch, old))

    assert relative(chunked, whole) <= TOLERANCE
