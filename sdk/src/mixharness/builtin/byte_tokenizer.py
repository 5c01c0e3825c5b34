"""A tokenizer that needs no training: one token per byte, and Qwen3's control tokens.

The scripted engine's default. It samples nothing and knows no chat template.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mixharness.proxy.templates import QWEN3_TAG_TOKENS, QWEN3_TURN_TOKENS


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer of 256 byte symbols and Qwen3's nine control tokens.

    Encoding is lossless for any text, and the same in every process.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_added(token, special=True) for token in QWEN3_TURN_TOKENS])
    tokenizer.add_tokens([_added(token, special=False) for token in QWEN3_TAG_TOKENS])
    return tokenizer


def _added(token: str, *, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)
