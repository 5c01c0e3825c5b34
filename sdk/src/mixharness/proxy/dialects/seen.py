"""How a conversation's items were read the last time: what is sent again is read once.

It knows lists of JSON values only; what an item means is each dialect's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

_KEPT = 8
"""Conversations that may take turns."""


class Seen:
    """Remembers the latest bodies of one rollout in one dialect.

    A program sends its whole conversation with every call. Items that begin a body as they began
    an earlier one are taken over, the very objects, which makes comparing histories cheap too.
    Values are compared as Python compares them: `1`, `1.0` and `true` are the same here.
    """

    def __init__(self) -> None:
        self._latest: list[tuple[list[Any], list[Any]]] = []

    def read(self, items: list[Any], read: Callable[[int, Any], T]) -> list[T]:
        """Return what each item is read as.

        Args:
            items: of a body; must not be changed later.
            read: takes an item's number and the item; called for new ones only.
        """
        known = [(common(before, items), before, found) for before, found in self._latest]
        same, grown, found = max(known, key=lambda each: each[0], default=(0, None, []))
        read_now: list[T] = [*found[:same], *map(read, range(same, len(items)), items[same:])]
        others = [pair for pair in self._latest if same < len(pair[0]) or pair[0] is not grown]
        self._latest = [(items, read_now), *others][:_KEPT]
        return read_now


def common(known: Sequence[object], received: Sequence[object]) -> int:
    """Return how many items two sequences of one type begin with in common."""
    shorter = min(len(known), len(received))
    if known[:shorter] == received[:shorter]:  # the common case, and at the speed of C
        return shorter
    pairs = zip(known, received, strict=False)
    return next(i for i, (a, b) in enumerate(pairs) if a != b)
