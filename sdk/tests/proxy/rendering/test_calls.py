import pytest

from mixharness.proxy.rendering.calls import HERMES, JsonCalls, exact_arguments, learn

MISTRAL = JsonCalls("[TOOL_CALLS]")
BARE = JsonCalls("", key="parameters")


def hermes(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def test_hermes_calls_and_the_text_around_them():
    one = '{"name": "a", "arguments":{"x":  "</tool_call>"}}'
    two = '{"name": "b"}'
    text = f"First.\n{hermes(one)}\nThen.\n{hermes(two)}\n"
    rest, calls, malformed = HERMES.read(text)
    assert rest == "First.\nThen."
    assert calls == [("a", '{"x":  "</tool_call>"}'), ("b", "{}")]
    assert malformed == []


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "t", "arguments": {"a": }',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "t", "arguments": "a"}',
        '{"name": "t", "arguments": {"a": NaN}}',
        '["t"]',
        "",
        "[" * 5000,
    ],
)
def test_a_malformed_call_is_kept_as_it_is_and_hides_no_other(body):
    good = hermes('{"name": "t", "arguments": {}}')
    rest, calls, malformed = HERMES.read(f"Text.{hermes(body)}{good}")
    assert (rest, calls, malformed) == ("Text.", [("t", "{}")], [hermes(body)])


def test_a_call_cut_off_is_malformed():
    assert HERMES.read('<tool_call>\n{"name": "t"') == ("", [], ['<tool_call>\n{"name": "t"'])
    assert MISTRAL.read("[TOOL_CALLS] ") == ("", [], ["[TOOL_CALLS]"])


def test_a_list_of_calls():
    text = 'Ok [TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}, "id": "1"}, {"name": "b"}]'
    assert MISTRAL.read(text) == ("Ok", [("a", '{"x": 1}'), ("b", "{}")], [])


def test_a_bare_call_is_the_whole_turn():
    call = '{"name": "a", "parameters": {"x": 1.0}}'
    assert BARE.read(call) == ("", [("a", '{"x": 1.0}')], [])
    assert BARE.read(f"{call}; {call}")[1] == [("a", '{"x": 1.0}')] * 2
    for text in (f"See {call}", f"{call} and so on", "{}", "{not json"):
        assert BARE.read(text) == (text, [], [])


@pytest.mark.parametrize(
    ("rendered", "learned"),
    [
        (hermes('{"name": "f", "arguments": {"a": 1}}'), HERMES),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "x"}]', MISTRAL),
        ('{"name": "f", "parameters": {}}', BARE),
        ("<function=f>\n</function>", None),
        ("f\n```json\n{}\n```", None),
        ('{"f": {"arguments": {}}}', None),
    ],
)
def test_the_form_of_calls_is_learned_from_one(rendered, learned):
    assert learn(rendered, "f") == learned


def test_exact_arguments_are_found_wherever_they_stand():
    assert exact_arguments('f\n```json\n{"a":  1.0}\n```', {"a": 1.0}) == '{"a":  1.0}'
    assert exact_arguments('{"name": {"b": 2}, "x": {"a": 1}}', {"a": 1}) == '{"a": 1}'
    assert exact_arguments("<a>ü</a>", {"a": "ü"}) == '{"a": "ü"}'
