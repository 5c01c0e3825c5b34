"""Who a container, network or firewall rule belongs to, and whether that runner still lives."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

LABEL = "mixharness"
OWNER_LABEL = "mixharness.owner"


def this_process() -> str:
    """Return a name of this process that no other has, now or after a restart of the machine.

    Numbers count within one process namespace, so that is in it.
    """
    pid = os.getpid()
    return f"{pid}-{psutil.Process(pid).create_time():.2f}-{_namespace()}"


def labels(owner: str) -> dict[str, str]:
    """Return the labels of everything that a runner makes."""
    return {LABEL: "1", OWNER_LABEL: owner}


def abandoned(owner: str) -> bool:
    """Say whether a runner is gone; of one that cannot be seen from here, never."""
    pid, started, namespace = owner.split("-")
    if namespace != _namespace():
        return False
    try:
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(started)) < 1.0
        return not same or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
