"""Tokens as HTML: decoding, escaping, and shading by surprise. No layout of pages here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from tokenizers import Tokenizer

_SPECIAL = re.compile(r"&lt;(?:\|[^\s|]{1,40}\||/?(?:tool_call|tool_response|think))&gt;")
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SURE, _SURPRISED = -0.1, -5.0


def decode(ids: Sequence[int], tokenizer: Tokenizer | None) -> str:
    """Return the text of some tokens, control tokens included; the ids without a tokenizer."""
    if tokenizer is None:
        return " ".join(str(token) for token in ids)
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False)
    return text


def text_html(text: str) -> str:
    """Escape a text and set its control tokens apart."""
    return _SPECIAL.sub(lambda match: f'<span class="special">{match[0]}</span>', escape(text))


def sampled_html(ids: Sequence[int], logprobs: Sequence[float], tokenizer: Tokenizer | None) -> str:
    """Return sampled tokens one by one, the darker the less likely the policy found them."""
    spans = []
    for piece, number in _pieces(ids, tokenizer):
        logprob = logprobs[number]
        surprise = min(1.0, max(0.0, (_SURE - logprob) / (_SURE - _SURPRISED)))
        style = f' style="background:rgba(226,88,34,{0.55 * surprise:.2f})"' if surprise else ""
        spans.append(
            f'<span class="token"{style} title="log p {logprob:.3f}">{text_html(piece)}</span>'
        )
    return "".join(spans)


def _pieces(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[tuple[str, int]]:
    """Split into (text, index of its last token); a character of several tokens stays whole."""
    pieces: list[tuple[str, int]] = []
    waiting: list[int] = []
    for number, token in enumerate(ids):
        waiting.append(token)
        piece = decode(waiting, tokenizer) if tokenizer else f"{token} "
        if piece.endswith(_BROKEN) and len(waiting) < 4 and number + 1 < len(ids):
            continue
        pieces.append((piece, number))
        waiting = []
    return pieces
