import pytest

from mixharness.harness import CallIdentity, RequestView
from mixharness.types import CallRole
from mixharness_claude_code.roles import role_of

OURS = {"x-claude-code-session-id": "s"}
ASK = {"messages": [{"role": "user", "content": "do it"}]}
COMPACT = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools. Then"


@pytest.mark.parametrize("role", list(CallRole))
def test_the_hint_header_names_the_role(role):
    headers = OURS | {"x-claude-code-request-class": role.value, "x-claude-code-agent-id": "a1"}
    assert role_of(RequestView(headers, ASK)) == CallIdentity(role, "a1")


def test_without_hints_the_agent_id_and_the_text_tell():
    assert role_of(RequestView(OURS, ASK)) == CallIdentity(CallRole.MAIN, "")
    agent = OURS | {"x-claude-code-agent-id": "a1"}
    assert role_of(RequestView(agent, ASK)) == CallIdentity(CallRole.SUBAGENT, "a1")
    blocks = [{"type": "tool_result", "content": "x"}, {"type": "text", "text": COMPACT}]
    for content in (COMPACT, blocks):
        body = {"messages": [{"role": "user", "content": content}]}
        assert role_of(RequestView(OURS, body)) == CallIdentity(CallRole.COMPACTION, "")


def test_a_class_of_a_later_release_falls_back():
    headers = OURS | {"x-claude-code-request-class": "dreaming"}
    assert role_of(RequestView(headers, {})) == CallIdentity(CallRole.MAIN, "")


def test_a_request_of_another_program_is_left_to_structure():
    assert role_of(RequestView({"user-agent": "curl/8"}, ASK)) is None
