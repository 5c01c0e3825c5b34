from functools import partial

import pytest

from mixharness.engine import EngineTokenizer
from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.rendering.family import missing_tokens
from mixharness.proxy.templates import family_config
from mixharness.proxy.tokenizer_adapter import TokenizerAdapter


def test_a_family_names_the_tokens_it_misses(tokenizer_with):
    adapter = TokenizerAdapter(tokenizer_with(["<|eot_id|>"]))
    missing = missing_tokens(partial(family_config, "llama-3", "all"), adapter)
    assert "<|start_header_id|>" in missing
    assert "<|eot_id|>" not in missing
    tokenizer = EngineTokenizer(tokenizer=adapter.tokenizer, renderer="llama-3", context=9)
    with pytest.raises(TemplateError, match=r"<\|begin_of_text\|> .* must each be one token"):
        ChatRenderer(tokenizer)


@pytest.mark.parametrize(
    ("reasoning", "written"),
    [("Hm", "Hm\n</think>\n\nSo.<|im_end|>"), ("", "\n</think>\n\nSo.<|im_end|>")],
)
def test_a_turn_goes_on_after_a_prompt_that_opens_the_reasoning(renderer_of, reasoning, written):
    renderer = renderer_of("qwen3.5")
    prompt = renderer.render([ChatMessage(role="user", content="Go.")], ())
    assert renderer.decode(prompt).endswith("<|im_start|>assistant\n<think>\n")
    message = ChatMessage(role="assistant", content="So.", reasoning=reasoning)
    assert renderer.decode(renderer.turn_ids(message)) == written


def test_a_sampled_turn_that_never_opened_its_reasoning_is_all_reasoning(renderer_of):
    renderer = renderer_of("qwen3.5")
    turn = renderer.turn_ids(ChatMessage(role="assistant", content="So.", reasoning="Hm"))
    cut = renderer.parse(turn[:1])
    assert (cut.text, cut.reasoning != "") == ("", True)
