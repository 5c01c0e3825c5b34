import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixharness.proxy.chat import ChatMessage, ToolCall
from mixharness_claude_code.arguments import ARGUMENTS


def settled(arguments: str, name: str = "Bash") -> str:
    call = ToolCall(id="t", name=name, arguments=arguments)
    message = ARGUMENTS.apply(ChatMessage(role="assistant", content="x", tool_calls=(call,)))
    assert (message.role, message.content) == ("assistant", "x")
    return message.tool_calls[0].arguments


# Left: as sampled. Right: as the released program sent it back (measured).
REWRITTEN = [
    (
        "Bash",
        r'{ "command":"echo \u0068i" , "timeout": 5e3}',
        '{"command":"echo hi","timeout":5000}',
    ),
    ("Bash", '{"timeout":0.1e1,"command":"a"}', '{"command":"a","timeout":1}'),
    ("Bash", '{"timeout":12345678901234567890}', '{"timeout":12345678901234567000}'),
    ("Bash", '{"timeout":-0.0}', '{"timeout":0}'),
    ("Bash", '{"timeout":1e400}', '{"timeout":null}'),
    ("Bash", '{"timeout":" 7 "}', '{"timeout":7}'),
    ("Bash", '{"dangerouslyDisableSandbox":"true"}', '{"dangerouslyDisableSandbox":true}'),
    ("Bash", r'{"command":"echo \ud83d x"}', '{"command":"echo \ufffd x"}'),
    ("Bash", r'{"command":"echo \\u00e9"}', '{"command":"echo é"}'),
    ("Bash", r'{"command":"echo \\ud83d\\ude00"}', '{"command":"echo 😀"}'),
    ("Bash", '{"command":"a","command":"b"}', '{"command":"b"}'),
    ("Bash", '{"command":"b","__proto__":{"a":1}}', '{"command":"b"}'),
    ("Bash", '{"command":"cd /tmp/ws && ls"}', '{"command":"ls"}'),
    ("Bash", r'{"command":"find . -exec ls {} \\\\;"}', r'{"command":"find . -exec ls {} \\;"}'),
    (
        "Edit",
        r'{"new_string":"bye  \nx \n","old_string":"hi","file_path":"a.txt"}',
        r'{"replace_all":false,"file_path":"a.txt","old_string":"hi","new_string":"bye\nx\n"}',
    ),
    (
        "Read",
        '{"file_path":"a","offset":"1","limit":2.0}',
        '{"file_path":"a","offset":1,"limit":2}',
    ),
]


@pytest.mark.parametrize(("name", "sampled", "returned"), REWRITTEN)
def test_what_the_program_rewrites_compares_equal(name, sampled, returned):
    assert settled(sampled, name) == settled(returned, name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"command":"ls"}', '{"command":"ls "}'),
        ('{"command":"cat a"}', '{"command":"cat b"}'),
        ('{"command":"ls; cd a && ls"}', '{"command":"ls; ls"}'),
        ('{"command":"ls"}', '{"command":"ls","description":""}'),
        ('{"timeout":1}', '{"timeout":2}'),
    ],
)
def test_other_commands_stay_different(one, other):
    assert settled(one) != settled(other)


@pytest.mark.parametrize("text", ['{"a": ', '{"a": NaN}', "", "[" * 100_000])
def test_what_is_no_json_is_left_alone(text):
    assert settled(text) == text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(alphabet=r"\u0d83;cd &x" + " \n"),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["command", "new_string", "x"]), inner)
    ),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["Bash", "Edit"]))
def test_the_rule_is_idempotent(value, name):
    once = settled(json.dumps(value), name)
    assert settled(once, name) == once
