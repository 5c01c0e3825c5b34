"""The two clocks of a rollout (ARCHITECTURE section 7). Nothing here waits or cancels."""

from __future__ import annotations

import time
from collections.abc import Callable


class RolloutClock:
    """An agent clock that stands still while a model call is held, queued or sampled.

    Starts when made. Pauses nest: with several calls under way it stands still until the last one
    has been answered. Used from one event loop.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = self._since = now()
        self._run_s = 0.0
        self._pauses = 0

    def pause(self) -> None:
        """Stop the agent clock."""
        if self._pauses == 0:
            self._run_s += self._now() - self._since
        self._pauses += 1

    def resume(self) -> None:
        """Undo one `pause`.

        Raises:
            RuntimeError: the clock was not paused.
        """
        if self._pauses == 0:
            raise RuntimeError("resume() without pause()")
        self._pauses -= 1
        if self._pauses == 0:
            self._since = self._now()

    @property
    def agent_s(self) -> float:
        """Return the seconds that count for the agent."""
        running = 0.0 if self._pauses else self._now() - self._since
        return self._run_s + running

    @property
    def wall_s(self) -> float:
        """Return the seconds since the start."""
        return self._now() - self._started
