"""Which thread of the program made a request, and what for. Histories are the proxy's."""

from __future__ import annotations

from typing import Any

import orjson

from mixharness import CallIdentity, CallRole, RequestView


def role_of(request: RequestView) -> CallIdentity | None:
    """Tell role and agent from the headers that release 0.169 always sends.

    The main thread's id equals the session's; each sub-agent has a thread of its own. None for a
    request that is not of this program: the structure of the call decides.
    """
    headers = request.headers
    thread = headers.get("thread-id")
    if thread is None or "x-codex-turn-metadata" not in headers:
        return None
    own = thread != headers.get("session-id") or "x-openai-subagent" in headers
    agent = thread if own else ""
    if _metadata(headers["x-codex-turn-metadata"]).get("request_kind") == "compaction":
        return CallIdentity(role=CallRole.COMPACTION, agent=agent)
    return CallIdentity(role=CallRole.SUBAGENT if own else CallRole.MAIN, agent=agent)


def _metadata(header: str) -> dict[str, Any]:
    try:
        metadata = orjson.loads(header)
    except orjson.JSONDecodeError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
