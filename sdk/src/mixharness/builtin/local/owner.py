"""Who owns a sandbox folder: user leases, the pid file, and the reaper. It opens no sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from mixharness.builtin.local.init import remove
from mixharness.errors import SandboxError

PREFIX = "mixharness-sandbox-"
OWNER_FILE = "owner.json"
FIRST_UID, NUM_UIDS = 40_000, 10_000
UNLABELLED_S = 60.0
REAP_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class UidLease:
    """A user number that no other sandbox on this machine has while `sock` is open."""

    uid: int
    sock: socket.socket


def lease_uid() -> UidLease:
    """Return the lowest free user number.

    A user per sandbox keeps rollouts from reading each other's environment, which holds the proxy
    secret (rule 11), and makes the process limit count one sandbox only. An abstract socket is
    the lock: the kernel frees it with its last holder, the sandbox's init process.

    Raises:
        SandboxError: all are taken.
    """
    for uid in range(FIRST_UID, FIRST_UID + NUM_UIDS):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.bind(f"\0mixharness-uid-{uid}")
        except OSError:
            sock.close()
        else:
            return UidLease(uid, sock)
    raise SandboxError(f"all {NUM_UIDS} sandbox users are in use")


def write_owner(folder: Path, init_pid: int | None) -> None:
    """Write the pid file: the runner, and the init process once there is one."""
    pids = {"runner": os.getpid()} | ({"init": init_pid} if init_pid else {})
    text = json.dumps({name: [pid, _started(pid)] for name, pid in pids.items()})
    (folder / OWNER_FILE).write_text(text, encoding="utf-8")


def reap() -> int:
    """Kill and remove sandboxes of this user whose runner is gone; return how many."""
    found = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.geteuid() and _abandoned(folder):
                _kill(folder)
                remove(str(folder))
                found += 1
    return found


def _owner(folder: Path) -> dict[str, tuple[int, float]]:
    try:
        owner = json.loads((folder / OWNER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: (int(pid), float(started)) for name, (pid, started) in owner.items()}


def _abandoned(folder: Path) -> bool:
    owner = _owner(folder)
    if not owner:  # the runner died between making the folder and labelling it, or is there now
        return time.time() - folder.stat().st_mtime > UNLABELLED_S
    return not _same(*owner["runner"])


def _kill(folder: Path) -> None:
    """Let the init process clean up if it lives, then kill what carries the sandbox's mark."""
    init = _owner(folder).get("init")
    if init and _same(*init):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(init[0])
            process.terminate()
            process.wait(REAP_LIMIT_S)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("MIXHARNESS_SANDBOX") == str(folder):
                process.kill()


def _started(pid: int) -> float:
    return float(psutil.Process(pid).create_time())


def _same(pid: int, started: float) -> bool:
    """Say whether `pid` still is the process that started then, not a later one."""
    try:
        return abs(_started(pid) - started) < 1.0 and (
            psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False
