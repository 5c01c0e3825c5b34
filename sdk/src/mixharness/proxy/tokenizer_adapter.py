"""A bare `tokenizers.Tokenizer` as the package `renderers` wants it, with control text escaped.

No chat template lives here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

# A lone surrogate cannot occur in text that came as UTF-8, so nothing has to be escaped twice.
_BREAK = "\ud800"


class TokenizerAdapter:
    """What `renderers` calls a tokenizer.

    `encode` turns a control token's string into that token, because templates spell some of theirs
    as text. Whatever comes from outside must pass `escape` first: it puts a break into every such
    string, at which `encode` cuts, so that the pieces can never be read as control.
    """

    name_or_path = "engine"
    unk_token_id: int | None = None
    eos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, *_args: Any, **_kwargs: Any) -> list[int]:
        """Return the ids of template text; broken control strings stay plain text."""
        pieces = text.split(_BREAK)
        ids: list[int] = []
        for piece in pieces:
            ids += self.tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int], *_args: Any, **_kwargs: Any) -> str:
        """Return the text of ids, control tokens spelled out."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def convert_tokens_to_ids(self, tokens: str) -> int | None:
        """Return the id of one token's string, or None."""
        return self.tokenizer.token_to_id(tokens)

    def escape(self, value: Any) -> Any:
        """Return JSON-like `value` with every control string in its texts broken up."""
        if isinstance(value, str):
            return self._control_starts.sub(lambda match: match.group() + _BREAK, value)
        if isinstance(value, dict):
            return {self.escape(key): self.escape(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape(item) for item in value]
        return value

    @cached_property
    def control(self) -> re.Pattern[str]:
        """Match a control string, the longest first; nothing when there are none."""
        names = sorted(self._control_strings, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    @cached_property
    def _control_starts(self) -> re.Pattern[str]:
        """Match the first character of every control string, overlapping ones included."""
        return re.compile(f"(?=(?:{self.control.pattern})).", re.DOTALL)

    @cached_property
    def _control_strings(self) -> list[str]:
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
