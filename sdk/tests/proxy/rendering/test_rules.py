from mixharness.proxy.chat import ChatMessage, Tool, ToolCall
from mixharness.proxy.rendering import rules
from mixharness.proxy.rendering.rules import apply_rules, find_rules, with_tools

SYSTEM = ChatMessage(role="system", content="S")
USER = ChatMessage(role="user", content="U")
CALLS = tuple(ToolCall(id=f"c{i}", name=f"t{i}", arguments='{"a":  1}') for i in (0, 1))
RESULT = ChatMessage(role="tool", tool_call_id="c0", content="R")
TURN = ChatMessage(role="assistant", content="T", reasoning="H", tool_calls=CALLS)


def applied(messages, *names, beginning=True):
    ruled = apply_rules(messages, names, beginning=beginning)
    return [(m.role, m.content, len(m.tool_calls)) for m in ruled]


def test_without_rules_nothing_changes():
    messages = [SYSTEM, USER, TURN, RESULT, SYSTEM, USER]
    assert apply_rules(messages, (), beginning=True) == messages


def test_system_text():
    assert applied([SYSTEM, USER], rules.SYSTEM_INTO_USER) == [("user", "S\n\nU", 0)]
    assert applied([SYSTEM], rules.SYSTEM_INTO_USER) == [("user", "S", 0)]
    marked = ("user", "<system>\nS\n</system>", 0)
    assert applied([SYSTEM, SYSTEM], rules.SYSTEM_AS_USER) == [("system", "S", 0), marked]
    assert applied([SYSTEM, USER], rules.SYSTEM_AS_USER, beginning=False)[0] == marked


def test_users_in_a_row():
    assert applied([USER, USER, USER], rules.MERGE_USERS) == [("user", "U\n\nU\n\nU", 0)]
    joined = applied([RESULT, USER], rules.USER_INTO_RESULT, beginning=False)
    assert joined == [("tool", "R\n\nU", 0)]


def test_turns_that_a_template_cannot_write():
    each = applied([TURN], rules.ONE_CALL_A_TURN)
    assert each == [("assistant", "T", 1), ("assistant", "", 1)]
    assert applied([TURN], rules.TEXT_APART) == [("assistant", "T", 0), ("assistant", "", 2)]
    assert applied([TURN], rules.TEXT_DROPPED) == [("assistant", "", 2)]
    text = (
        'T\n<tool_call>\n{"name": "t0", "arguments": {"a":  1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "t1", "arguments": {"a":  1}}\n</tool_call>'
    )
    assert applied([TURN, RESULT, USER], rules.CALLS_AS_TEXT) == [
        ("assistant", text, 0),
        ("user", "<tool_response>\nR\n</tool_response>\n\nU", 0),
    ]


def test_the_tool_list_in_the_system_text():
    tool = Tool(name="t", description="D", parameters={"type": "object"})
    first, user = with_tools([SYSTEM, USER], [tool], "CALL")
    assert first.content.startswith("S\n\n# Tools")
    assert '{"type": "function", "function": {"name": "t", "description": "D"' in first.content
    assert first.content.endswith("\nCALL")
    assert with_tools([user], [tool], "CALL")[0].role == "system"


def test_rules_are_found_by_what_raises_is_lost_or_moves():
    def text(messages, tools, *, kept=("user", "assistant")):
        if any(message.role == "tool" for message in messages):
            raise ValueError("no tools")
        return "".join(m.content for m in messages if m.role in kept)

    assert find_rules(text) == {
        rules.SYSTEM_INTO_USER,
        rules.SYSTEM_AS_USER,
        rules.CALLS_AS_TEXT,
        rules.TOOLS_IN_SYSTEM,
    }

    def hoisting(messages, tools):
        ordered = sorted(messages, key=lambda message: message.role != "system")
        return "".join(f"{m.content}{m.tool_calls}" for m in ordered) + str(tools)

    assert find_rules(hoisting) == {rules.SYSTEM_AS_USER}
