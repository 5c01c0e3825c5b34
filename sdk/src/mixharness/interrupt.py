"""Running a coroutine so that Ctrl-C and a terminate signal end it cleanly."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_interruptible(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run `main` to its end in a new event loop.

    SIGINT, SIGTERM and SIGHUP cancel it, so every context closes; a second one changes nothing.

    Raises:
        KeyboardInterrupt: it was cancelled by a signal and has closed.
    """
    return asyncio.run(_cancelled_by_signals(main))


async def _cancelled_by_signals(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main)
    signalled = False

    def cancel() -> None:
        nonlocal signalled
        if not signalled:
            signalled = True
            task.cancel()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if signalled:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
