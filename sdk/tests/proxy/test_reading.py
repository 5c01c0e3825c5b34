"""Bodies are read as a plain parser reads them, however a conversation went on."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.reading import BodyReader, read_json

TEXTS = st.sampled_from(["", "a", '"],"', '"messages":[', "é\u2028", "]", "\\", "{}"])
VALUES = st.sampled_from([1, True, 1.0, None, 1e-7, "x", [], {}])
ITEMS = st.fixed_dictionaries({"role": st.sampled_from("us"), "content": TEXTS, "n": VALUES})
MORE = st.dictionaries(st.sampled_from(["model", "tools", "stream"]), VALUES, max_size=3)


@st.composite
def conversations(draw):
    """Bodies of a program that goes on, cuts, changes and begins anew, in several spellings."""
    key = draw(st.sampled_from(["messages", "input"]))
    items, bodies = [], []
    for _ in range(draw(st.integers(1, 8))):
        move = draw(st.sampled_from(["more", "more", "more", "same", "cut", "new"]))
        if move == "more":
            items = items + draw(st.lists(ITEMS, max_size=3))
        elif move == "cut":
            items = items[: draw(st.integers(0, len(items)))]
        elif move == "new":
            items = draw(st.lists(ITEMS, max_size=3))
        fields = [*draw(MORE).items()]
        fields.insert(draw(st.integers(0, len(fields))), (key, items))
        write = draw(
            st.sampled_from([orjson.dumps, orjson.dumps, lambda v: json.dumps(v).encode()])
        )
        bodies.append(write(dict(fields)))
    return bodies


@settings(max_examples=300)
@given(conversations())
def test_what_is_read_is_what_a_plain_parser_reads(bodies):
    reader = BodyReader()
    for raw in bodies:
        # As text, because Python takes 1, 1.0 and true for equal.
        found, expected = reader.read(raw), orjson.loads(raw)
        sort = orjson.OPT_SORT_KEYS
        assert orjson.dumps(found, option=sort) == orjson.dumps(expected, option=sort)


def test_items_of_a_conversation_that_grew_are_the_same_objects():
    reader = BodyReader()
    items = [{"role": "user", "content": f"turn {n}"} for n in range(3)]
    tools = [{"name": "run"}]
    first = reader.read(orjson.dumps({"model": "m", "messages": items[:2], "tools": tools}))
    other = reader.read(orjson.dumps({"model": "m", "messages": items[2:], "tools": tools}))
    second = reader.read(orjson.dumps({"model": "m", "messages": items, "stream": True}))
    assert [a is b for a, b in zip(first["messages"], second["messages"], strict=False)] == [
        True
    ] * 2
    assert second == {"model": "m", "messages": items, "stream": True}
    assert other["messages"][0] is not second["messages"][2]


@pytest.mark.parametrize(
    "rest",
    [
        b'],"messages":[{"content":"b"}]}',
        b',{"content":"b"}],"messages":[{"content":"b"}]}',
        b",]}",
        b',{"content":"b"}',
        b',{"content":"b"}]',
        b',{"content":"b"}],"messages":[]}',
        b',{"content":"b"}],"messages":1}',
        b',{"content":"b"}]}]}',
        b',{"content": "b"}]}',
        b"}",
        b"",
        b'] ,"stream":true}',
        b',"\\ud800"]}',
    ],
)
def test_what_is_unusual_is_read_from_the_beginning(rest):
    reader, raw = BodyReader(), b'{"model":"m","messages":[{"content":"a"}'
    reader.read(raw + b"]}")
    assert outcome(reader.read, raw + rest) == outcome(read_json, raw + rest)
    assert reader.read(raw + b"]}") == {"model": "m", "messages": [{"content": "a"}]}


def outcome(read, raw):
    try:
        return read(raw)
    except BadRequest as exc:
        return str(exc)
