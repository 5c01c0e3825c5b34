from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixharness.proxy.chat import ChatMessage, ChatRequest, ToolCall
from mixharness.proxy.rulebook import MATCH_RULES, RENDER_RULES

BUDGET = "<total_tokens>12 tokens left</total_tokens>"
CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
HEADER = "x-anthropic-billing-header: cc_version=2.1.328.e1b; cc_entrypoint=sdk-cli;"
STAMP = "[Mon 2026-11-30 16:20 UTC]"


def message(role, content, **more):
    return ChatMessage(role=role, content=content, **more)


def compared(one):
    for rule in MATCH_RULES:
        one = rule.apply(one)
    return one


def rendered(name, *messages, shown=None):
    (rule,) = (rule for rule in RENDER_RULES if rule.name == name)
    return rule.apply(ChatRequest(messages=messages), lambda request: shown or {}).messages


@pytest.mark.parametrize(
    ("role", "one", "other"),
    [
        ("system", f"{HEADER}\n\nBe brief.", "Be brief."),
        ("system", f"{HEADER}\n\nBe brief.", f"{HEADER.replace('e1b', '0f7')}\n\nBe brief."),
        ("tool", f"ok\n{BUDGET}", "ok"),
        ("user", f"{STAMP} Go on.", f"{STAMP.replace('16:20', '17:01')} Go on."),
        ("assistant", " \n", ""),
    ],
)
def test_these_compare_equal(role, one, other):
    assert compared(message(role, one)) == compared(message(role, other))


@pytest.mark.parametrize(
    ("role", "one", "other"),
    [
        ("user", HEADER, ""),
        ("assistant", f"ok\n{BUDGET}", "ok"),
        ("user", f"Now {STAMP}", "Now"),
        ("user", " ", ""),
        ("user", CONTEXT, ""),
        ("assistant", "<think>a</think>b", "b"),
        ("user", "<think>a</think>b", "b"),
    ],
)
def test_these_do_not(role, one, other):
    assert compared(message(role, one)) != compared(message(role, other))


def test_thoughts_count_the_same_in_a_field_and_before_the_text():
    inline = message("assistant", "<think>\na\n</think>\n\nb")
    assert compared(inline) == message("assistant", "b", reasoning="a")


TEXTS = st.lists(
    st.sampled_from(
        [BUDGET, CONTEXT, CONTEXT[:20], HEADER, STAMP, "<think>", "</think>", " ", "a\n"]
    )
).map("".join)


@given(st.sampled_from(["system", "user", "tool", "assistant"]), TEXTS)
def test_match_rules_are_idempotent(role, text):
    once = compared(message(role, text))
    assert compared(once) == once


def test_nothing_is_dropped_but_what_the_rule_names():
    told = [message("system", f"{HEADER}\n\nS"), message("user", "Go."), message("user", "")]
    assert rendered("drop_billing_header", *told) == (message("system", "S"), *told[1:])
    assert rendered("drop_token_budget", message("tool", f"ok {BUDGET}")) == (
        message("tool", "ok"),
    )
    assert rendered("drop_timestamp", message("user", f"{STAMP} Go.")) == (message("user", "Go."),)
    assert rendered("drop_token_budget", message("user", BUDGET), told[1]) == (told[1],)


def test_a_runtime_context_is_dropped_when_it_is_closed():
    inside = message("user", f"Go.\n\n{CONTEXT}\nNow.")
    open_ = message("user", CONTEXT[:60])
    said = message("assistant", CONTEXT)
    found = rendered("drop_runtime_context", message("user", CONTEXT), inside, open_, said)
    assert found == (message("user", "Go.\nNow."), open_, said)


def test_reasoning_comes_back_only_where_it_is_missing():
    call = ToolCall(id="a", name="t", arguments='{"a":  1}')
    shown = message("assistant", "x", reasoning="Hm.", tool_calls=(call,))
    lost = replace(shown, reasoning="", tool_calls=(replace(call, arguments='{"a":1}'),))
    other = replace(shown, reasoning="Oh.")
    user = message("user", "x")
    found = rendered("reattach_reasoning", user, lost, other, shown={1: shown, 2: shown})
    assert found == (user, shown, other)
