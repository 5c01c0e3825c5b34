"""Published chat templates: the table in docs/tokens.md, and what holds for each of them."""

import json
from pathlib import Path

import pytest

from mixharness.errors import TemplateError
from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.rendering.jinja_template import JinjaTemplate
from mixharness.proxy.rendering.probes import EXCEPTIONS
from mixharness.proxy.rendering.rules import RULES
from mixharness.proxy.rendering.shape import Shape, tool_list
from mixharness.proxy.templates import FAMILIES

PAGE = (Path(__file__).parents[4] / "docs/tokens.md").read_text("utf-8")
MODELS = (
    "Qwen2.5-7B-Instruct",
    "Qwen3-0.6B",
    "Qwen3-4B-Thinking-2507",
    "Qwen3-Coder-30B-A3B-Instruct",
    "Qwen3.5-4B",
    "Llama-3.1-8B-Instruct",
    "Llama-3.2-3B-Instruct",
    "Mistral-7B-Instruct-v0.3",
    "Mistral-Nemo-Instruct-2407",
    "Mistral-Small-24B-Instruct-2501",
    "gemma-2-2b-it",
    "gemma-3-270m-it",
    "gemma-4-E4B-it",
    "SmolLM2-135M-Instruct",
    "SmolLM3-3B",
    "gpt-oss-120b",
    "DeepSeek-V3",
    "DeepSeek-V3.1",
    "Kimi-K2-Instruct",
    "granite-4.0",
    "Hermes-4-14B",
    "phi-4",
)
"""Those that can be extended."""
OTHERS = ("DeepSeek-R1-Distill-Qwen-32B", "GLM-5")
EVERY = (*sorted(FAMILIES), *MODELS)
USER = ChatMessage(role="user", content="Go.")
TOOL = Tool(
    name="t", description="Does.", parameters={"type": "object", "properties": {"a": {}, "b": {}}}
)
CALL = ToolCall(id="call7x0", name="t", arguments='{"a": "x"}')
RESULT = ChatMessage(role="tool", tool_call_id=CALL.id, name="t", content="ok")


def listed(names):
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def row(renderer_of, name):
    """Return a template's line of the table."""
    kind = f"`{name}`" if name in FAMILIES else "`template`"
    try:
        kept = renderer_of(name)
        how = "bridges with exceptions" if kept.exceptions else "bridges"
        exceptions = listed(kept.exceptions)
    except TemplateError as exc:
        kept, how, exceptions = None, "refused", str(exc).split(":")[0]
    try:
        letter = renderer_of(name, rerender=True)
        anew = ", ".join(letter.rerenders) or "never"
    except TemplateError:
        letter, anew = None, "refused"
    if kept is None and letter is not None:
        how = "re-renders"
    rules = listed((kept or letter).rules) if kept or letter else "none"
    return f"| {name} | {kind} | {how} | {exceptions} | {anew} | {rules} |"


@pytest.mark.parametrize("name", [*EVERY, *OTHERS])
def test_the_table_is_true(renderer_of, name):
    assert row(renderer_of, name) in PAGE.splitlines()


def test_the_page_names_every_rule_and_exception():
    for name, meaning in {**RULES, **EXCEPTIONS}.items():
        assert f"| `{name}` | {meaning} |" in PAGE.splitlines()


@pytest.mark.parametrize(
    ("family", "file"),
    [
        ("qwen3", "Qwen-Qwen3-0.6B"),
        ("qwen3.5", "Qwen3.5-4B"),
        ("qwen3.6", "Qwen-Qwen3.6-35B-A3B"),
        ("llama-3", "meta-llama-Llama-3.2-3B-Instruct"),
        ("deepseek-v3", "yujiepan-deepseek-v3-tiny-random"),
        ("nemotron-3", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    ],
)
def test_a_family_writes_what_its_published_template_writes(renderer_of, texts, family, file):
    system = ChatMessage(role="system", content="Be brief.")
    talk = [system, USER, ChatMessage(role="assistant", content="Yes."), USER]
    tools = () if family == "deepseek-v3" else (TOOL,)
    bos = {"llama-3": "<|begin_of_text|>", "deepseek-v3": "<｜begin▁of▁sentence｜>"}
    # Llama's template writes this day when it cannot ask for today's.
    text = texts[file].replace("strftime_now is defined", "false")
    template = JinjaTemplate(text, {"bos_token": bos.get(family, "")})
    shaped = [Shape().message(message) for message in talk]
    renderer = renderer_of(family)
    written = renderer.decode(renderer.render(talk, tools))
    assert written == template.render(shaped, tool_list(tools), prompt=True)


@pytest.mark.parametrize("name", EVERY)
def test_control_strings_from_outside_stay_text(renderer_of, engine_tokenizer, name):
    renderer, tokenizer = renderer_of(name), engine_tokenizer(name).tokenizer
    controls = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    spiked = "a" + "".join(controls) + "b"

    def ids(text):
        user = ChatMessage(role="user", content=text)
        call = ToolCall(id="call7x0", name="t", arguments=json.dumps({"a": text}))
        turn = ChatMessage(role="assistant", content=text, tool_calls=(call,))
        result = ChatMessage(role="tool", tool_call_id=call.id, name="t", content=text)
        tool = Tool(name="t", description=text, parameters={"type": "object", "title": text})
        prompt = renderer.render([ChatMessage(role="system", content=text), user], [tool])
        written = renderer.turn_ids(turn)
        return prompt + written + renderer.extend(prompt, written, [result, user], [tool])

    plain, escaped = ids("ab"), ids(spiked)
    assert {c: escaped.count(i) for c, i in controls.items()} == {
        c: plain.count(i) for c, i in controls.items()
    }
    assert spiked in renderer.decode(escaped)


@pytest.mark.parametrize("name", EVERY)
def test_a_turn_cut_by_its_length_is_closed(renderer_of, name):
    renderer = renderer_of(name)
    prompt = renderer.render([USER], ())
    cut = renderer.turn_ids(ChatMessage(role="assistant", content="Half of it"))[:-1]
    closed = renderer.extend(prompt, cut, [USER], ())
    assert renderer.decode(closed).startswith(renderer.end_strings)


@pytest.mark.parametrize("name", EVERY)
def test_a_delta_costs_nothing_for_history(renderer_of, name):
    renderer = renderer_of(name)
    turn = renderer.turn_ids(ChatMessage(role="assistant", content="Done."))
    long, short = (renderer.render([USER] * n, ()) for n in (40, 1))
    assert renderer.extend(long, turn, [USER], ()) == renderer.extend(short, turn, [USER], ())
    assert renderer.extend(long, turn, [], ()) is not None  # two turns in a row


@pytest.mark.parametrize("name", EVERY)
def test_a_turn_reads_back_as_it_was_written(renderer_of, name):
    renderer = renderer_of(name)
    written = ChatMessage(role="assistant", content="I look.", reasoning="Hm.")
    turn = renderer.parse(renderer.turn_ids(written))
    assert turn.text == "I look."
    assert turn.reasoning in ("Hm.", "")
    calling = ChatMessage(role="assistant", tool_calls=(CALL,))
    turn = renderer.parse(renderer.turn_ids(calling), (), [TOOL])
    assert [(n, json.loads(a)) for n, a in turn.tool_calls] == [("t", {"a": "x"})]


def test_arguments_are_the_sampled_characters(renderer_of, engine_tokenizer):
    odd = '{"b":  1.50, "a": "\\u00e9\\n"}'
    sampled = {
        "Qwen2.5-7B-Instruct": '<tool_call>\n{{"name": "t", "arguments":{}}}\n</tool_call>',
        "Llama-3.1-8B-Instruct": '{{"name": "t", "parameters":  {}}}',
        "Mistral-7B-Instruct-v0.3": '[TOOL_CALLS] [{{"name": "t", "arguments": {}, "id": "123"}}]',
        "gpt-oss-120b": "<|channel|>commentary to=functions.t json<|message|>{}<|call|>",
        "deepseek-v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        "t\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "llama-3": '{{"name": "t", "parameters":  {}}}',
    }
    for name, text in sampled.items():
        tokenizer = engine_tokenizer(name).tokenizer
        ids = tokenizer.encode(text.format(odd), add_special_tokens=False).ids
        assert renderer_of(name).parse(ids, (), [TOOL]).tool_calls == (("t", odd),), name


def test_gpt_oss_stops_where_a_message_to_somebody_ends(renderer_of, engine_tokenizer):
    renderer, tokenizer = renderer_of("gpt-oss-120b"), engine_tokenizer("gpt-oss-120b").tokenizer
    stops = {tokenizer.id_to_token(token) for token in renderer.stop_ids}
    assert stops == {"<|return|>", "<|call|>"}  # <|end|> only ends its reasoning
    text = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Ok"
    turn = renderer.parse(tokenizer.encode(text, add_special_tokens=False).ids)
    assert (turn.text, turn.reasoning) == ("Ok", "Hm")


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "qwen3"])
def test_thinking_is_kept_or_the_template_is_followed_to_the_letter(renderer_of, name):
    for rerender in (False, True):
        renderer = renderer_of(name, rerender=rerender)
        prompt = renderer.render([USER], [TOOL])
        thought = ChatMessage(role="assistant", reasoning="Hm", tool_calls=(CALL,))
        turn = renderer.turn_ids(thought)
        assert renderer.extend(prompt, turn, [RESULT], [TOOL])
        later = renderer.extend(prompt, turn, [RESULT, USER], [TOOL])
        assert (later is None) == rerender


def test_a_template_that_fails_its_probes_is_refused_by_default(renderer_of):
    with pytest.raises(TemplateError, match="probe 'two calls in a row': extending"):
        renderer_of("DeepSeek-R1-Distill-Qwen-32B")
    with pytest.raises(TemplateError, match="no token ends a turn"):
        renderer_of("GLM-5")
