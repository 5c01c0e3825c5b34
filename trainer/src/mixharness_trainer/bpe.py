"""A small byte-level BPE from captured prompts. No model and no chat template live here."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mixharness.proxy.templates import QWEN3_TAG_TOKENS, QWEN3_TURN_TOKENS

CONTROL_TOKENS = QWEN3_TURN_TOKENS + QWEN3_TAG_TOKENS
"""Each is one token, with ids 0 to 8 in this order."""

_CONTROL = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))
# A tool definition is one word here. It is the same in every prompt of a harness and longer than
# all the rest; merged, it leaves a small policy the few tokens that differ.
_WORDS = Regex(
    r"""\{"type": "function"[^\n]*"""
    r"""|'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)


def train_bpe(texts: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """Train a byte-level BPE that any text passes through unchanged.

    Merges stay within words and never cross a control token.

    Args:
        texts: rendered conversations, control tokens included.
        vocab_size: at least 265 (control tokens and all bytes); fewer come out of little text.

    Raises:
        ValueError: `vocab_size` is too small.
    """
    smallest = len(CONTROL_TOKENS) + 256
    if vocab_size < smallest:
        raise ValueError(f"vocab_size must be at least {smallest}, got {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    parts = (part for text in texts for part in _CONTROL.split(text))
    tokenizer.train_from_iterator(parts, trainer)
    return tokenizer
