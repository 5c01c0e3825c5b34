import json

import pytest

from mixharness.harness import CallIdentity, RequestView
from mixharness.types import CallRole
from mixharness_codex.roles import role_of


def view(thread="s", metadata='{"request_kind":"turn"}', **more):
    headers = {"session-id": "s", "thread-id": thread, "x-codex-turn-metadata": metadata}
    return RequestView(headers | more, {})


COMPACTING = json.dumps({"request_kind": "compaction"})
CHILD = {"x-openai-subagent": "collab_spawn", "x-codex-parent-thread-id": "s"}


@pytest.mark.parametrize(
    ("request_view", "role", "agent"),
    [
        (view(), CallRole.MAIN, ""),
        (view(metadata=COMPACTING), CallRole.COMPACTION, ""),
        (view("t", **CHILD), CallRole.SUBAGENT, "t"),
        (view("t"), CallRole.SUBAGENT, "t"),
        (view("t", COMPACTING, **CHILD), CallRole.COMPACTION, "t"),
        (view(metadata="{nope"), CallRole.MAIN, ""),
        (view(metadata="[]"), CallRole.MAIN, ""),
    ],
)
def test_headers_name_role_and_thread(request_view, role, agent):
    assert role_of(request_view) == CallIdentity(role, agent)


def test_a_request_of_another_program_is_left_to_structure():
    assert role_of(RequestView({"user-agent": "curl/8"}, {})) is None
    assert role_of(RequestView({"thread-id": "t"}, {})) is None
