"""Small models, trees and groups for the trainer's tests. No assertions live here."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import Qwen3Config, Qwen3ForCausalLM

from mixharness.types import (
    GroupKey,
    NodeKind,
    Rollout,
    RolloutGroup,
    Score,
    TokenNode,
    TokenTree,
    VersionSpan,
)
from mixharness_trainer.attention import TREE_ATTENTION, Layout
from mixharness_trainer.policy import Policy

VOCAB = 64
torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other


def make_tree(rollout_id: str, runs: list[tuple[int, str, int]], seed: int = 0) -> TokenTree:
    """Build a tree from (parent, kind, length); kind is e(nvironment), s(ampled), u(ntrained).

    Environment tokens depend on the place in the tree alone, so that they merge over a group.
    """
    own = torch.Generator().manual_seed(seed)
    shared = torch.Generator().manual_seed(999)
    nodes: list[TokenNode] = []
    for number, (parent, kind, length) in enumerate(runs):
        source = shared if kind == "e" else own
        ids = tuple(torch.randint(0, VOCAB, (length,), generator=source).tolist())
        depth = nodes[parent].depth + len(nodes[parent].ids) if parent >= 0 else 0
        if kind == "e":
            nodes.append(TokenNode(parent=parent, kind=NodeKind.ENVIRONMENT, ids=ids, depth=depth))
            continue
        nodes.append(
            TokenNode(
                parent=parent,
                kind=NodeKind.SAMPLED,
                ids=ids,
                depth=depth,
                rollout_id=rollout_id,
                call_id=f"call-{number}",
                logprobs=tuple((-4 * torch.rand(length, generator=own)).tolist()),
                versions=(VersionSpan(0, 0, length),),
                temperature=0.7 if number % 2 else 1.0,
                trained=kind == "s",
                reason="" if kind == "s" else "superseded",
            )
        )
    return TokenTree(tuple(nodes))


def make_group(
    harness: str, trees: list[TokenTree], rewards: list[float], task: str = "t"
) -> RolloutGroup:
    """Make a group; rollout ids are read from the trees, or made up for trees without samples."""
    key = GroupKey(task, harness)
    rollouts = []
    for number, (tree, reward) in enumerate(zip(trees, rewards, strict=True)):
        ids = [node.rollout_id for node in tree.nodes if node.rollout_id]
        name = ids[0] if ids else f"{harness}-{task}-empty-{number}"
        rollouts.append(Rollout(id=name, key=key, calls=(), score=Score(value=reward)))
    return RolloutGroup(key, tuple(rollouts), tuple(trees))


def make_model(seed: int = 0, attention: str = TREE_ATTENTION) -> Qwen3ForCausalLM:
    """Make a tiny Qwen3 whose weights are large enough to make context matter."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    model = Qwen3ForCausalLM(config).eval()
    model.set_attn_implementation(attention)
    return model


def make_policy(seed: int = 0, lr: float = 1e-2) -> Policy:
    """Make a policy around a tiny model."""
    model = make_model(seed)
    adamw = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    return Policy(model=model, adamw=adamw, layout=Layout.TREE, tokenizer_files={})


FORKED = [
    (-1, "e", 7),
    (0, "s", 5),  # sampled, then three continuations fork after it
    (1, "e", 3),
    (2, "s", 4),
    (1, "e", 2),
    (4, "s", 6),
    (5, "e", 4),
    (6, "s", 2),
    (1, "s", 3),  # sampled right after a sampled run
    (0, "u", 3),  # context of nothing that is trained
]
"""A rollout with four trained leaves' worth of forks, of unequal lengths."""
PLAIN = [(-1, "e", 7), (0, "s", 9), (1, "e", 5), (2, "s", 1)]
SHORT = [(-1, "e", 5), (0, "s", 2)]


SPECIAL_TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
]


def save_model(
    folder: Path, seed: int, *, initializer_range: float = 0.2, context: int = 1024
) -> Path:
    """Write a folder that engines sample from: 60 thousand parameters, 512 tokens.

    It is sharp enough that a wrong temperature or cache shows in its log-probs.
    """
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=initializer_range,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def saved_model() -> Callable[..., Path]:
    return save_model


@pytest.fixture
def tree() -> Callable[..., TokenTree]:
    return make_tree


@pytest.fixture
def group() -> Callable[..., RolloutGroup]:
    return make_group


@pytest.fixture
def model() -> Callable[..., Qwen3ForCausalLM]:
    return make_model


@pytest.fixture
def policy() -> Callable[..., Policy]:
    return make_policy


@pytest.fixture
def mixed_groups() -> list[RolloutGroup]:
    """Two harnesses on one task: forks, unequal lengths, one rollout without trained tokens."""
    first = [make_tree("a0", FORKED, 1), make_tree("a1", PLAIN, 2), make_tree("a2", SHORT, 3)]
    second = [make_tree("b0", PLAIN, 4), make_tree("b1", FORKED, 5)]
    empty = TokenTree((TokenNode(parent=-1, kind=NodeKind.ENVIRONMENT, ids=(1, 2), depth=0),))
    return [
        make_group("agentloop", [*first, empty], [1.0, 0.0, 0.25, 0.5]),
        make_group("claude_code", second, [0.0, 1.0]),
    ]


@pytest.fixture
def tokenizer() -> Tokenizer:
    words = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", *(f"w{n}" for n in range(61))]
    made = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="w0"))
    made.add_special_tokens(words[:3])
    return made
