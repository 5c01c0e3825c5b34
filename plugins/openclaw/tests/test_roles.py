import pytest

from mixharness.harness import CallIdentity, RequestView
from mixharness.types import CallRole
from mixharness_openclaw.roles import SESSION_ID, role_of

CHILD = "6ceeeaaf-1340-4632-8b83-b94aad1fa63f"
MAIN = {"messages": [{"role": "system", "content": "You are a personal assistant"}]}
SUMMARY = "You are a context summarization assistant. Your task"
SUMMARIES = (
    {"messages": [{"role": "system", "content": SUMMARY}]},
    {"input": [{"role": "developer", "content": [{"type": "input_text", "text": SUMMARY}]}]},
    {"system": [{"type": "text", "text": SUMMARY}], "messages": [{"role": "user", "content": "x"}]},
)


@pytest.mark.parametrize(
    ("session", "body", "role", "agent"),
    [
        (f"{SESSION_ID}:0", MAIN, CallRole.MAIN, ""),
        (f"{SESSION_ID}:2", MAIN, CallRole.MAIN, ""),
        (SESSION_ID, MAIN, CallRole.MAIN, ""),
        *[(SESSION_ID, body, CallRole.COMPACTION, "") for body in SUMMARIES],
        (f"{CHILD}:0", MAIN, CallRole.SUBAGENT, CHILD),
        (CHILD, SUMMARIES[0], CallRole.COMPACTION, CHILD),
        (f"{SESSION_ID}:0", {"messages": []}, CallRole.MAIN, ""),
    ],
)
def test_the_session_and_the_first_text_tell(session, body, role, agent):
    assert role_of(RequestView({"session_id": session}, body)) == CallIdentity(role, agent)


def test_without_the_header_only_compaction_is_known():
    assert role_of(RequestView({}, MAIN)) is None
    assert role_of(RequestView({}, {"system": [], "messages": [{"content": None}]})) is None
    assert role_of(RequestView({}, SUMMARIES[2])) == CallIdentity(CallRole.COMPACTION, "")
