"""Templates small enough to read, and what is found out about them."""

import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.engine import EngineTokenizer
from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.renderer import ChatRenderer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = "{% if messages|length > 4 %}{% set messages = messages[-2:] %}{% endif %}" + CHATML
USER = ChatMessage(role="user", content="Go.")
TOOL = Tool(name="look", description="Looks.", parameters={"type": "object"})
CALL = ToolCall(id="call0x0", name="look", arguments='{"a":  1}')
RESULT = ChatMessage(role="tool", tool_call_id=CALL.id, name="look", content="seen")


def make(text, **options):
    return ChatRenderer(
        EngineTokenizer(
            tokenizer=byte_tokenizer(),
            renderer="template",
            context=99,
            chat_template=text,
            special_tokens={"eos_token": "<|endoftext|>"},
            **options,
        )
    )


@pytest.fixture(scope="module")
def chatml():
    return make(CHATML)


def test_a_template_without_tools_gets_them_in_hermes_form(chatml):
    assert chatml.rules == {"calls_as_text", "tools_in_system"}
    assert chatml.exceptions == frozenset()
    prompt = chatml.decode(chatml.render([USER], [TOOL]))
    assert prompt.startswith("<|im_start|>system\n# Tools\n")
    assert '"description": "Looks."' in prompt
    assert 'Write a call like this:\n<tool_call>\n{"name": "NAME", "arguments": ' in prompt
    turn = chatml.turn_ids(ChatMessage(role="assistant", content="Ok.", tool_calls=(CALL,)))
    read = chatml.parse(turn)
    assert (read.text, read.tool_calls) == ("Ok.", (("look", '{"a":  1}'),))
    delta = chatml.decode(chatml.extend(chatml.render([USER], [TOOL]), turn, [RESULT], [TOOL]))
    assert delta == (
        "\n<|im_start|>user\n<tool_response>\nseen\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_stop_ids_are_the_end_of_a_turn_and_of_a_text(chatml):
    tokenizer = byte_tokenizer()
    wanted = {tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")}
    assert set(chatml.stop_ids) == wanted


def test_the_hash_covers_the_text_and_what_is_done_with_it(chatml):
    others = [make(CHATML + "{# changed #}"), make(CHATML, rerender=True)]
    assert len({chatml.hash, make(CHATML).hash, *(other.hash for other in others)}) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "needs the model's own chat template, but its folder has none"),
        ("{{ messages[0].content }}", "no token ends a turn"),
        (CHATML.replace("<|im_end|>", "{{ messages|length }}<|im_end|>"), "no token ends a turn"),
        ("{{ messages|length }}" + CHATML, "a past turn does not begin with"),
        (FORGETFUL, "probe 'two calls in a row': extending a conversation"),
    ],
)
def test_a_template_that_cannot_be_extended_is_refused(text, problem):
    with pytest.raises(TemplateError, match=problem):
        make(text)


def test_a_template_that_fails_is_rendered_anew_when_asked():
    renderer = make(FORGETFUL, rerender=True)
    assert set(renderer.rerenders) >= {"system", "two calls in a row"}
    turn = renderer.turn_ids(ChatMessage(role="assistant", content="Ok."))
    assert renderer.extend(renderer.render([USER], ()), turn, [USER], ()) is None
    talk = [USER, ChatMessage(role="assistant", content="Ok."), USER] * 2
    assert renderer.decode(renderer.render(talk, ())).count("Go.") == 1


def test_what_a_template_refuses_is_the_requests_fault():
    refusal = "{% if 'X' in messages[0].content %}{{ raise_exception('no X') }}{% endif %}"
    renderer = make(refusal + CHATML)
    with pytest.raises(BadRequest, match="the chat template cannot carry this: no X"):
        renderer.render([ChatMessage(role="user", content="X")], ())


def test_reasoning_in_tags_of_its_own():
    text = CHATML.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}"
        "{{ m.content }}",
    )
    renderer = make(text)
    assert renderer.reasoning_tags == ("[THINK]", "[/THINK]")
    turn = renderer.turn_ids(ChatMessage(role="assistant", content="Ok.", reasoning="Hm"))
    read = renderer.parse(turn)
    assert (read.text, read.reasoning) == ("Ok.", "Hm")
    closing = renderer.extend(renderer.render([USER], ()), turn[:9], [USER], ())
    assert renderer.decode(closing).startswith("[/THINK]<|im_end|>")
    assert renderer.parse(turn[:9]).text == ""


def test_a_tag_that_a_user_wrote_opens_no_reasoning():
    renderer = make(CHATML + "{# </think> #}")
    assert renderer.reasoning_tags == ("<think>", "</think>")
    prompt = renderer.render([ChatMessage(role="user", content="What is <think>")], ())
    turn = renderer.turn_ids(ChatMessage(role="assistant", content="A tag."))
    assert renderer.parse(turn, prompt).text == "A tag."
    assert renderer.decode(renderer.extend(prompt, turn[:3], [USER], ()))[:10] == "<|im_end|>"
