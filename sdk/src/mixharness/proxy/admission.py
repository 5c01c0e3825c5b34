"""What goes into a session and what it hands back: plain values. The session is session.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mixharness.engine import InferenceEngine
from mixharness.harness import CallIdentity, Harness, RequestView
from mixharness.proxy.chat import Answer, ChatRequest
from mixharness.proxy.gate import Gate
from mixharness.proxy.prompt import Prompt
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.resolved import Resolved
from mixharness.types import Limits


class Pausable(Protocol):
    """The agent clock: stands still while a request is held, queued or sampled."""

    def pause(self) -> None:
        """Stop counting."""

    def resume(self) -> None:
        """Count on."""


class Rejected(Exception):
    """A request that gets an error status instead of a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Overflow(Exception):
    """The prompt leaves no room for an answer."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(f"{prompt_tokens} tokens do not fit into {limit}")
        self.prompt_tokens = prompt_tokens
        self.limit = limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The run file's say in how requests are served."""

    temperature: float = 1.0
    max_tokens: int = 1024
    """Most tokens of one answer; a request may ask for fewer."""
    render_rules: tuple[str, ...] = ()
    """Names of the harness's render rules that are switched on."""
    keep_alive_s: float = 5.0
    """Longest silence of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What all sessions of a proxy share."""

    engine: InferenceEngine[Any]
    renderer: ChatRenderer
    gate: Gate
    settings: ProxySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What one session is for."""

    rollout_id: str
    harness: Harness[Any]
    limits: Limits
    folder: Path
    base_url: str
    secret: str
    clock: Pausable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A model request as it came in."""

    chat: ChatRequest
    view: RequestView
    raw: bytes
    encode: Callable[[Answer], bytes]
    """Turns the answer into the response's exact bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A call that is about to be sampled."""

    index: int
    identity: CallIdentity
    guessed: bool = False
    """The harness gave no hint: who made the call was told from its structure."""
    request: ChatRequest
    resolved: Resolved
    prompt: Prompt
    max_tokens: int
    rules: tuple[str, ...]
    started: float
    """On the monotonic clock."""

    @property
    def call_id(self) -> str:
        """Return the call's id, unique in the rollout."""
        return f"call_{self.index}"

    @property
    def begins_anew(self) -> bool:
        """Say whether the lane had a history of which nothing is held any more."""
        return bool(self.resolved.fork) and not self.resolved.held

    @property
    def lane(self) -> str:
        """Return the conversation the call belongs to."""
        return lane_of(self.identity)


def lane_of(identity: CallIdentity) -> str:
    """Return the name of an agent's conversation; what it asks on the side has one of its own."""
    return f"{identity.role}/{identity.agent}"


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A call that is being sampled, or was and may be asked for again."""

    call_id: str
    key: tuple[object, ...]
    task: asyncio.Task[Answer] = field(init=False)
    clients: int = 1
    served_again: int = 0
    sampled: bool = False
    """The engine is done: nothing is left to cancel."""
