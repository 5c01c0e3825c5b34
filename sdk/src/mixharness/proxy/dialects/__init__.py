"""Wire dialects: JSON bodies in, `ChatRequest`; `Answer` in, bodies and event streams out.

A dialect is pure (no I/O, no clock). HTTP, keep-alive timing and recording are app.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from mixharness.proxy.chat import Answer, ChatRequest
from mixharness.proxy.dialects.seen import Seen


class BadRequest(ValueError):
    """A request this proxy cannot serve; sent back in the dialect's own error shape."""


class Dialect(Protocol):
    """One wire format."""

    name: ClassVar[str]
    path: ClassVar[str]
    """Route of the model call below the rollout's base URL, e.g. `/v1/messages`."""
    keep_alive: ClassVar[bytes]
    """Sent while the engine samples; resets the client's idle timers and shows nothing."""
    end_status: ClassVar[int]
    """HTTP status at which programs of this dialect stop at once: no retry, no other request."""

    def parse(self, body: Mapping[str, Any], seen: Seen | None = None) -> ChatRequest:
        """Read a request body; `seen` remembers earlier ones of the same rollout.

        Raises:
            BadRequest: with a sentence that says what is wrong.
        """

    def render(self, answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole response body of a non-streaming request; `body` is what was asked."""

    def events(self, answer: Answer, model: str, body: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a complete, well-formed event stream; the last chunk is the terminal event."""

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return an error body for an HTTP status."""

    def overflow(self, prompt_tokens: int, limit: int) -> tuple[int, dict[str, Any]]:
        """Return status and body of "the prompt does not fit", as the harness acts on it."""

    def stream_error(self, message: str) -> bytes:
        """Return the chunk that ends a stream whose headers were already sent."""

    def api_key(self, headers: Mapping[str, str]) -> str:
        """Return the key a client sent in this dialect, or an empty string."""
