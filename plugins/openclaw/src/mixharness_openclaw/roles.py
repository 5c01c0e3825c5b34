"""Which session of the program made a request, and what for. Histories are the proxy's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixharness import CallIdentity, CallRole, RequestView

SESSION_ID = "00000000-0000-4000-8000-000000000000"
"""Of the main session: the same in every rollout, because it stands in the prompt."""
_COMPACTION = "You are a context summarization assistant."


def role_of(request: RequestView) -> CallIdentity | None:
    """Tell role and agent from the session header and the system text of release 2026.9.6.

    The header holds `SESSION` or `SESSION:COMPACTIONS`; each sub-agent has a session of its own.
    None for a request without it, as the program sends them in the Anthropic dialect: the
    structure of the call decides.
    """
    session = request.headers.get("session_id", "").partition(":")[0]
    agent = "" if session == SESSION_ID else session
    if _beginning(request.body).startswith(_COMPACTION):
        return CallIdentity(role=CallRole.COMPACTION, agent=agent)
    if not session:
        return None
    return CallIdentity(role=CallRole.SUBAGENT if agent else CallRole.MAIN, agent=agent)


def _beginning(body: Mapping[str, Any]) -> str:
    """Return the text that a request begins with, in any dialect."""
    items = body.get("messages") or body.get("input") or [{}]
    text = body.get("system") or items[0].get("content") or ""
    if isinstance(text, list):
        text = text[0].get("text", "") if text else ""
    return str(text)
