"""Which agent made a call and what for (TOKENS_AND_TREES section 2): hints first, then structure.

Pruning by role is done in tree/.
"""

from __future__ import annotations

from typing import Any

import structlog

from mixharness.harness import CallIdentity, Harness, RequestView
from mixharness.proxy.chat import ChatRequest
from mixharness.proxy.fingerprint import Fingerprinter
from mixharness.types import CallRole

log = structlog.get_logger()


class Roles:
    """Identifies the calls of one rollout: what the harness says wins, else structure.

    By structure the first request is the main agent's. A first request without tools gives way to
    the first one that has some, because programs ask for titles and the like before they start.
    """

    def __init__(self, harness: Harness[Any], fingerprinter: Fingerprinter) -> None:
        self._harness = harness
        self._fingerprinter = fingerprinter
        self._main: bytes | None = None
        self._main_has_tools = False

    def identify(self, view: RequestView, request: ChatRequest) -> CallIdentity:
        """Return who made a call and what for."""
        try:
            hinted = self._harness.role_of(view)
        except Exception as exc:  # a plugin's mistake must not cost the rollout
            log.warning("role_of_failed", harness=self._harness.name, error=repr(exc))
            hinted = None
        return hinted or self._by_structure(request)

    def _by_structure(self, request: ChatRequest) -> CallIdentity:
        root = self._root(request)
        if self._main is None or (request.tools and not self._main_has_tools):
            self._main, self._main_has_tools = root, bool(request.tools)
        if root == self._main:
            return CallIdentity()
        if not request.tools:
            return CallIdentity(CallRole.AUXILIARY, f"auxiliary-{root.hex()[-8:]}")
        return CallIdentity(CallRole.SUBAGENT, f"subagent-{root.hex()[-8:]}")

    def _root(self, request: ChatRequest) -> bytes:
        """Fingerprint tools and system text."""
        root = self._fingerprinter.root(request.tools)
        if request.messages[0].role != "system":
            return root
        leading = ChatRequest(messages=request.messages[:1], tools=request.tools)
        return root + self._fingerprinter.messages(root, leading)[0]
