"""The one gate at which model requests wait for a weight update (rule 9).

It holds, and never refuses. What happens while it is closed is the trainer's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Open except during a weight update. Belongs to one event loop.

    Attributes:
        held_s: seconds that requests have waited here, all together.
    """

    def __init__(self) -> None:
        self.held_s = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_flight = 0
        self._closing = asyncio.Lock()

    @asynccontextmanager
    async def pass_(self) -> AsyncIterator[float]:
        """Wait until the gate is open, then count as in flight; yields the seconds waited."""
        arrived = time.monotonic()
        try:
            while not self._open.is_set():
                await self._open.wait()
        finally:
            held_s = time.monotonic() - arrived
            self.held_s += held_s
        self._in_flight += 1
        self._idle.clear()
        try:
            yield held_s
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    @asynccontextmanager
    async def closed(self, drain: bool = True) -> AsyncIterator[None]:
        """Hold new requests; with `drain`, begin only when none is in flight any more."""
        async with self._closing:
            self._open.clear()
            try:
                if drain:
                    await self._idle.wait()
                yield
            finally:
                self._open.set()
