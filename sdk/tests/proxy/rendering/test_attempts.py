import pytest

from mixharness.proxy.chat import Tool

TOOL = Tool(
    name="t",
    description="",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
    },
)
XML = "<tool_call>\n<function=t>\n{}</function>\n</tool_call>"


def parse(renderer_of, engine_tokenizer, name, text):
    ids = engine_tokenizer(name).tokenizer.encode(text, add_special_tokens=False).ids
    return renderer_of(name).parse(ids, (), [TOOL])


@pytest.mark.parametrize("name", ["qwen3.5", "Qwen3.5-4B", "Qwen3-Coder-30B-A3B-Instruct"])
def test_arguments_without_json_become_json(renderer_of, engine_tokenizer, name):
    closed = "</think>" if "3.5" in name else ""
    call = XML.format("<parameter=a>\nls -l\n</parameter>\n<parameter=n>\n3\n</parameter>\n")
    turn = parse(renderer_of, engine_tokenizer, name, f"Hm{closed}Look. {call}<|im_end|>")
    assert turn.tool_calls == (("t", '{"a": "ls -l", "n": 3}'),)
    assert turn.text.endswith("Look.")
    assert turn.status == "ok"


def test_a_malformed_call_is_shown_with_its_markers(renderer_of, engine_tokenizer):
    call = "<tool_call>\nt(1)\n</tool_call>"
    turn = parse(renderer_of, engine_tokenizer, "qwen3.5", f"</think>Look. {call}<|im_end|>")
    assert (turn.prose, turn.malformed, turn.status) == ("Look.", (call,), "invalid")
    assert turn.text == f"Look.\n{call}"


def test_channels(renderer_of, engine_tokenizer):
    text = (
        "<|channel|>analysis<|message|>Hm<|end|>"
        '<|start|>assistant to=functions.t<|channel|>commentary json<|message|>{"a":  "x"}<|call|>'
    )
    turn = parse(renderer_of, engine_tokenizer, "gpt-oss-120b", text)
    assert (turn.reasoning, turn.tool_calls) == ("Hm", (("t", '{"a":  "x"}'),))
    broken = "<|channel|>commentary to=functions.t json<|message|>{a<|call|>"
    turn = parse(renderer_of, engine_tokenizer, "gpt-oss-120b", broken)
    assert (turn.tool_calls, turn.status) == ((), "invalid")
    assert "{a" in turn.text


def test_a_call_inside_reasoning_is_only_thought_of(renderer_of, engine_tokenizer):
    call = XML.format("<parameter=a>\nls\n</parameter>\n")
    turn = parse(
        renderer_of, engine_tokenizer, "Qwen3.5-4B", f"I could {call}</think>No.<|im_end|>"
    )
    assert (turn.text, turn.tool_calls) == ("No.", ())
    cut = parse(renderer_of, engine_tokenizer, "Qwen3.5-4B", f"I could {call}")
    assert (cut.text, cut.tool_calls) == ("", ())
