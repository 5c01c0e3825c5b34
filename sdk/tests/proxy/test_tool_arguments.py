import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixharness.proxy.tool_arguments import sampled_arguments

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name": "t", "arguments": {"a":  1}}', '{"a":  1}'),
        ('{"arguments":\n{ } , "name": "t"}', "{ }"),
        ('{"name": "\\"arguments\\": {}", "arguments": {"x": "}"}}', '{"x": "}"}'),
        ('{"arguments": {"a": 1}, "arguments": {"a": 2}}', '{"a": 2}'),
        ('{"name": "t"}', "{}"),
        ("{ }", "{}"),
    ],
)
def test_the_value_comes_character_for_character(call, arguments):
    assert sampled_arguments(call) == arguments


@given(
    st.dictionaries(st.text(), JSON, max_size=3), JSON, st.sampled_from([None, 1]), st.booleans()
)
def test_any_spacing(others, arguments, indent, ascii_only):
    call = json.dumps({**others, "arguments": arguments}, indent=indent, ensure_ascii=ascii_only)
    found = sampled_arguments(call)
    assert found in call
    assert json.loads(found) == arguments
