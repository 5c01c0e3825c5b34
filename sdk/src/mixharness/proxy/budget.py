"""What a rollout may still sample under its limits. It counts nothing: session.py does."""

from __future__ import annotations

from mixharness.types import Limits


class Exhausted(Exception):
    """The rollout has used up what it may sample; every further request is refused.

    The message is for the program. Words such as context or token limit are not in it: there are
    programs that take them for an overflow, and summarize their history to go on.

    Attributes:
        note: what the session notes.
    """

    def __init__(self, message: str, note: str) -> None:
        super().__init__(message)
        self.note = note


def tokens_left(limits: Limits, calls: int, tokens: int) -> int:
    """Return how many tokens the next call may sample, at least 1.

    Calls that are being sampled count with what they have when they are done, so calls at the
    same time may end up above `limits.tokens` together, each by less than its own `max_tokens`.

    Args:
        limits: the rollout's.
        calls: it has made.
        tokens: they have sampled.

    Raises:
        Exhausted: the calls or the tokens are used up.
    """
    if calls >= limits.max_turns:
        raise Exhausted("rollout turn budget exhausted", f"max_turns: {calls} model calls")
    if tokens >= limits.tokens:
        raise Exhausted("rollout sampling budget exhausted", f"max_tokens: {tokens} tokens")
    return limits.tokens - tokens
