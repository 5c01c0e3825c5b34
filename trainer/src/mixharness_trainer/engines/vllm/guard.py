"""Runs a server's command and ends it with its runner. Standard library only; started as a script.

Standard input is a pipe whose other end the runner holds: it closes when the runner ends in any
way, a SIGKILL included. Then the whole process group of the server is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0
"""Time a server has to end by itself."""


def main(command: list[str]) -> int:
    """Run the command to its end and return its exit status."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_end_with_runner, args=(server,), daemon=True).start()
    status = server.wait()
    _signal_group(server.pid, signal.SIGKILL)  # what the server started, if it died alone
    return status


def _end_with_runner(server: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _signal_group(server.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(GRACE_S)
    _signal_group(server.pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
