"""Parsers that an engine may bring along: interfaces only.

Most models need none: what proxy/rendering/ knows or learns reads their turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from mixharness.proxy.chat import Tool


class CallParser(Protocol):
    """Reads the tool calls in a turn's text, control tokens spelled out."""

    identity: str
    """Name and version; a part of the renderer's hash."""

    def read(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[tuple[str, str]]]:
        """Return what is no call, and name and JSON arguments of each call; may raise anything."""


class TurnParsers(Protocol):
    """What an engine offers for templates that are not read otherwise."""

    named: bool
    """The run file names the parser of calls, so that it is used or refused."""
    identity: str
    """Name and version of the parser of reasoning; empty without one."""

    def call_parsers(self) -> Iterator[CallParser]:
        """Yield those that may be tried, the likeliest first: just the named one, if there is."""

    def split(self, text: str) -> tuple[str, str]:
        """Return text and reasoning of a turn; only asked with an `identity`."""
