from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from mixharness_trainer.bpe import CONTROL_TOKENS, train_bpe

TEXTS = [
    f"<|im_start|>system\nUse the tools well.<|im_end|>\n<|im_start|>user\nThe invoice no. {n} of "
    f"firm {n * 7} is late.<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
    f'{{"name": "bash", "arguments": {{"command": "cat {n}.txt"}}}}\n</tool_call><|im_end|>'
    for n in range(50)
]
TOKENIZER = train_bpe(TEXTS, 400)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    encoded: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return encoded


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(ids(TOKENIZER, text), skip_special_tokens=False) == text


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_each_control_token_is_one_token(token: str) -> None:
    assert ids(TOKENIZER, f"a{token}b") == [
        *ids(TOKENIZER, "a"),
        CONTROL_TOKENS.index(token),
        *ids(TOKENIZER, "b"),
    ]


@given(st.lists(st.text(max_size=20), min_size=2, max_size=4))
def test_encoding_is_separate_on_both_sides_of_a_control_token(parts: list[str]) -> None:
    whole = ids(TOKENIZER, "<|im_end|>".join(parts))
    apart = [
        i for part in parts for i in [*ids(TOKENIZER, part), CONTROL_TOKENS.index("<|im_end|>")]
    ]
    assert whole == apart[:-1]


def test_a_common_word_is_one_token() -> None:
    assert len(ids(TOKENIZER, " invoice")) == 1


def test_the_same_texts_in_any_order_give_the_same_tokenizer() -> None:
    assert train_bpe(TEXTS[::-1], 400).to_str() == TOKENIZER.to_str()


def test_the_size_is_kept() -> None:
    assert TOKENIZER.get_vocab_size() <= 400
    with pytest.raises(ValueError, match="at least 265, got 264"):
        train_bpe(TEXTS, 264)
