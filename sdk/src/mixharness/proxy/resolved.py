"""How a request continues what is known: plain values. Finding it out is history.py's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mixharness.types import ModelCall

NO_CALLS = frozenset[str]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prints:
    """A request's fingerprints."""

    root: bytes
    messages: tuple[bytes, ...]
    links: tuple[bytes, ...]
    """links[i] covers the tools and the first i messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in a known conversation from which it can be gone on with."""

    call: ModelCall | None = None
    """The call that owns the last token before it."""
    length: int = 0
    """Tokens before it, counted from the root; never falls inside sampled ids."""
    turn: int | None = None
    """Tokens of the assistant's turn that ends here; None when a turn would begin here."""
    held: frozenset[str] = NO_CALLS
    """Calls whose messages stand before it."""
    before: frozenset[str] = NO_CALLS
    """Those of them that another one held already."""


@dataclass(frozen=True, slots=True)
class SharedIds:
    """The tokens before a place. In two parts, because joining a long one copies all of it."""

    head: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.head) + len(self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """How a request continues what is known."""

    prints: Prints
    place: Place = field(default_factory=Place)
    """Where the shared history ends."""
    start: int = 0
    """First message that the shared history does not cover."""
    spliced: Mapping[int, ModelCall] = field(default_factory=dict)
    """Message index to the call, sampled on another branch, whose ids stand for it."""
    places: Mapping[int, Place] = field(default_factory=dict)
    """What is held after each turn from `start` on; tokens are not counted yet."""
    held: frozenset[str] = NO_CALLS
    """Every call whose message this request holds, rewritten or not."""
    before: frozenset[str] = NO_CALLS
    """Those of them that another one held already."""
    continues: tuple[str, ...] = ()
    fork: str = ""
    fork_span: str = ""

    @property
    def parent(self) -> ModelCall | None:
        """Return the call that owns the last shared token."""
        return self.place.call

    def anew(self) -> Resolved:
        """Return the same when the template had to render the whole conversation anew."""
        return replace(
            self, place=Place(), start=0, spliced={}, places={}, fork="rerendered", fork_span=""
        )


def prompt_len(call: ModelCall) -> int:
    """Return the length of a call's prompt in tokens."""
    return call.parent_len + len(call.environment_ids)
