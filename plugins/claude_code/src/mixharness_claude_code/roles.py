"""Which agent of the program made a request, and what for. Histories are arguments.py's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixharness import CallIdentity, CallRole, RequestView

_COMPACTION = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."
_ROLES = {role.value: role for role in CallRole}


def role_of(request: RequestView) -> CallIdentity | None:
    """Tell role and agent from the hint headers, else from signs that need no hints.

    None for a request that is not of this program: the structure of the call decides.
    """
    headers = request.headers
    if "x-claude-code-session-id" not in headers:
        return None
    agent = headers.get("x-claude-code-agent-id", "")
    role = _ROLES.get(headers.get("x-claude-code-request-class", ""))
    return CallIdentity(role=role or _unhinted(agent, request.body), agent=agent)


def _unhinted(agent: str, body: Mapping[str, Any]) -> CallRole:
    # Compaction has its agent's system and tools, so only the text tells; it goes first.
    if _last_text(body).startswith(_COMPACTION):
        return CallRole.COMPACTION
    return CallRole.SUBAGENT if agent else CallRole.MAIN


def _last_text(body: Mapping[str, Any]) -> str:
    messages = body.get("messages") or [{}]
    content = messages[-1].get("content", "")
    if isinstance(content, str):
        return content
    texts = [block.get("text", "") for block in content if block.get("type") == "text"]
    return texts[-1] if texts else ""
