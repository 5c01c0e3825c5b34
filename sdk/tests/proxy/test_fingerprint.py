from dataclasses import replace

import pytest

from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.fingerprint import Fingerprinter, chain_of, first_difference, tool_defaults
from mixharness.proxy.rules import MatchRule

SCHEMA = {"properties": {"replace_all": {"default": False}, "n": {"default": 1}}}
TOOLS = (Tool(name="Edit", description="", parameters=SCHEMA),)


def edit(arguments, **about):
    call = ToolCall(id=about.pop("id", "a"), name="Edit", arguments=arguments)
    return ChatMessage(role="assistant", content="x", tool_calls=(call,), **about)


def same(one, two, rules=()):
    fingerprinter = Fingerprinter(rules)
    root = fingerprinter.root(TOOLS)
    first, second = fingerprinter.messages(root, (one, two), TOOLS)
    return first == second


@pytest.mark.parametrize(
    "resent",
    [
        '{"b":1,"a":{"d":2,"c":3}}',
        '{"a": {"c": 3, "d": 2.0}, "b": 1, "replace_all": false}',
        '{"b": 1e0, "n": 1, "a": {"d": 2, "c": 3}}',
    ],
)
def test_arguments_match_as_values(resent):
    assert same(edit('{"b": 1, "a": {"d": 2, "c": 3}}'), edit(resent, id="cut"))


@pytest.mark.parametrize("resent", ['{"a": 2}', '{"a": 1, "replace_all": true}', '{"a": "1"}', "a"])
def test_other_arguments_do_not_match(resent):
    assert not same(edit('{"a": 1}'), edit(resent))


def test_big_numbers_match_as_doubles():
    assert same(edit('{"a": 9007199254740993123}'), edit('{"a": 9007199254740993000}'))
    assert not same(edit('{"a": 9007199254740991}'), edit('{"a": 9007199254740992}'))


@pytest.mark.parametrize("change", [{"content": "x "}, {"reasoning": "r"}, {"role": "user"}])
def test_text_is_compared_exactly(change):
    message = ChatMessage(role="assistant", content="x")
    assert not same(message, replace(message, **change))


def test_match_rules_of_a_harness_apply():
    rule = MatchRule("trim", 1, lambda m: replace(m, content=m.content.strip()))
    one, two = (ChatMessage(role="user", content=text) for text in (" a", "a"))
    assert same(one, two, [rule])
    assert not same(one, two)


def test_chain_depends_on_order_and_tools():
    fingerprinter = Fingerprinter()
    root, prints = fingerprinter.root(TOOLS), [b"a", b"b"]
    assert chain_of(root, prints)[:2] == chain_of(root, [b"a"])
    assert chain_of(root, prints)[-1] != chain_of(root, [b"b", b"a"])[-1]
    assert chain_of(fingerprinter.root(()), [])[0] != root


def test_first_difference_names_the_span():
    assert first_difference("the long one", "the short one") == "'the long one' -> 'the short one'"
    known, received = first_difference("a" * 99 + "b" * 99, "a" * 99 + "c").split(" -> ")
    assert known == repr("a" * 8 + "b" * 40)
    assert received == repr("a" * 8 + "c")


def test_defaults_come_from_the_schema():
    odd = Tool(name="odd", description="", parameters={"properties": {"x": True}})
    assert tool_defaults([*TOOLS, odd]) == {"Edit": {"replace_all": False, "n": 1}, "odd": {}}
