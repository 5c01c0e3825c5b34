import pytest
from tokenizers import Tokenizer, models

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.engine import EngineTokenizer
from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.renderer import ChatRenderer

TOKENIZER = byte_tokenizer()
USER = ChatMessage(role="user", content="Go.")
RESULT = ChatMessage(role="tool", content="ok")
NEXT_TURN = "<|im_start|>assistant\n"


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def text(token_ids):
    return TOKENIZER.decode(list(token_ids), skip_special_tokens=False)


def test_unknown_template_is_refused():
    tokenizer = EngineTokenizer(tokenizer=TOKENIZER, renderer="llama-9", context=10)
    with pytest.raises(TemplateError, match=r"'llama-9'; these work: .*qwen3, .*template"):
        ChatRenderer(tokenizer)


def test_missing_control_tokens_are_named():
    bare = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    bare.add_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    with pytest.raises(TemplateError, match=r"<tool_call> .* </think> must each be one token"):
        ChatRenderer(EngineTokenizer(tokenizer=bare, renderer="qwen3", context=10))


class ForgetfulRenderer(ChatRenderer):
    """A template whose turns, rendered whole, are not what was sampled."""

    def turn_ids(self, message):
        return [*super().turn_ids(message), 0]


def test_a_template_that_fails_its_probe_is_refused():
    tokenizer = EngineTokenizer(tokenizer=TOKENIZER, renderer="qwen3", context=10)
    with pytest.raises(TemplateError, match="probe 'user': extending a conversation"):
        ForgetfulRenderer(tokenizer)


def test_hash_is_stable_and_depends_on_the_tokenizer(renderer):
    again = ChatRenderer(EngineTokenizer(tokenizer=TOKENIZER, renderer="qwen3", context=1))
    other = byte_tokenizer()
    other.add_tokens(["more"])
    changed = ChatRenderer(EngineTokenizer(tokenizer=other, renderer="qwen3", context=1))
    assert again.hash == renderer.hash != changed.hash


@pytest.mark.parametrize("control", ["<|im_end|>", "<tool_call>", "</think>", "<|im_start|>"])
def test_control_strings_in_content_stay_text(renderer, control):
    control_id = TOKENIZER.token_to_id(control)
    plain = renderer.render([USER, USER], ())
    spiked = ChatMessage(role="user", content=f"a{control}{control}b")
    rendered = renderer.render([USER, spiked], ())
    assert rendered.count(control_id) == plain.count(control_id)
    assert f"a{control}{control}b" in text(rendered)
    result = ChatMessage(role="tool", content=control)
    delta = renderer.extend(plain, ids("x<|im_end|>"), [result], ())
    usual = renderer.extend(plain, ids("x<|im_end|>"), [RESULT], ())
    assert delta.count(control_id) == usual.count(control_id)
    assert control in text(delta)


def test_control_strings_in_tools_and_unsampled_turns_stay_text(renderer):
    tool = Tool(name="t", description="<|im_end|>", parameters={"a": ["<tool_call>"]})
    harmless = Tool(name="t", description="d", parameters={"a": ["p"]})
    for control in ("<|im_end|>", "<tool_call>"):
        control_id = TOKENIZER.token_to_id(control)
        spiked = renderer.render([USER], [tool])
        assert spiked.count(control_id) == renderer.render([USER], [harmless]).count(control_id)
    call = ToolCall(id="", name="t", arguments='{"a": "</tool_call>"}')
    turn = renderer.turn_ids(ChatMessage(role="assistant", content="</think>", tool_calls=(call,)))
    assert turn.count(TOKENIZER.token_to_id("</tool_call>")) == 1
    assert TOKENIZER.token_to_id("</think>") not in turn


def test_extend_looks_only_at_the_end_of_the_prompt(renderer):
    prompt, turn = renderer.render([USER] * 50, ()), ids("Done.<|im_end|>")
    delta = renderer.extend(prompt, turn, [USER], ())
    assert delta == renderer.extend(prompt[-40:], turn, [USER], ())
    assert text(delta) == "\n<|im_start|>user\nGo.<|im_end|>\n" + NEXT_TURN


def test_a_turn_cut_by_length_gets_closing_tokens(renderer):
    prompt = renderer.render([USER], ())
    assert text(renderer.extend(prompt, ids("Half"), [RESULT], ())).startswith("<|im_end|>\n")
    open_thought = renderer.extend(prompt, ids("<think>\nHm"), [RESULT], ())
    assert text(open_thought).startswith("</think><|im_end|>\n")


def test_a_closed_turn_with_an_open_thought_is_extended_as_it_is(renderer):
    prompt = renderer.render([USER], ())
    delta = renderer.extend(prompt, ids("<think>\nHm<|im_end|>"), [USER], ())
    assert text(delta).startswith("\n<|im_start|>user\n")


def test_two_assistant_turns_in_a_row(renderer):
    delta = renderer.extend(renderer.render([USER], ()), ids("One.<|im_end|>"), [], ())
    assert text(delta) == "\n" + NEXT_TURN


def test_parse_keeps_the_sampled_argument_characters(renderer):
    arguments = '{"b":  1.50, "a": "\\u00e9\\n"}'
    call = f'<tool_call>\n{{"name": "t", "arguments":{arguments} }}\n</tool_call>'
    turn = renderer.parse(ids(f"<think>\nHm.\n</think>\n\nText.\n{call}\n{call}<|im_end|>"))
    assert turn.tool_calls == (("t", arguments),) * 2
    assert (turn.text, turn.reasoning, turn.status) == ("Text.", "Hm.", "ok")


def test_reasoning_is_counted_in_sampled_tokens(renderer):
    thought = "<think>\nHm.\n</think>"
    for sampled, reasoning in (
        (f"{thought}\n\nText.<|im_end|>", thought),
        ("<think>\nHm.", "<think>\nHm."),
        ("<think>\n\n</think>\n\nText.", ""),
        ("Text.", ""),
    ):
        assert renderer.parse(ids(sampled)).reasoning_tokens == len(ids(reasoning))


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "t", "arguments": {"a": }',
        '{"arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "t", "arguments": "a"}',
        '{"name": "t", "arguments": {"a": NaN}}',
        "[1]",
    ],
)
def test_a_call_no_harness_could_run_is_shown_as_text(renderer, body):
    turn = renderer.parse(ids(f"<tool_call>\n{body}\n</tool_call><|im_end|>"))
    assert turn.tool_calls == ()
    assert body in turn.text
    assert turn.status == "invalid"
