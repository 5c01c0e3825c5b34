"""Starting a sandbox's init process, bare or inside namespaces. What it does there is init.py's."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import structlog

from mixharness.builtin.local.owner import UidLease
from mixharness.errors import SandboxError
from mixharness.snapshot import MIB
from mixharness.types import Limits

CLOSE_LIMIT_S = 10.0
_TAIL = 2000
# Python reads neither site packages nor the environment: it starts in 10 ms.
PYTHON_FLAGS = ("-I", "-S", "-E")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Launched:
    """An init process, or what holds it, and our end of its socket."""

    process: subprocess.Popen[bytes]
    sock: socket.socket

    def end(self) -> None:
        """Wait until everything in the sandbox is dead, and make sure of it."""
        try:
            self.process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            log.warning("sandbox_init_hung", pid=self.process.pid)
            self.process.kill()
            self.process.wait()


def launch(
    command: Sequence[str], config: Mapping[str, object], lease: UidLease | None, errors: IO[bytes]
) -> Launched:
    """Start an init process; it takes over the lease, whose socket the caller closes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        private = [theirs.fileno(), *([lease.sock.fileno()] if lease else [])]
        told = {**config, "fd": theirs.fileno(), "private": private}
        process = subprocess.Popen(
            [*command, json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=private,
            start_new_session=True,
            # A program of the same user could read the runner's keys from the environment.
            env={"PATH": "/usr/bin:/bin"},
        )
    return Launched(process, ours)


def rlimits(limits: Limits, *, count_processes: bool) -> list[tuple[int, int]]:
    """Return the limits that each process of a sandbox gets, as `setrlimit` takes them."""
    found = [
        # Not the address space, of which Node reserves gigabytes that it never uses.
        (resource.RLIMIT_DATA, limits.memory_mb * MIB),
        (resource.RLIMIT_FSIZE, limits.file_mb * MIB),
        (resource.RLIMIT_CORE, 0),
    ]
    if count_processes:
        found.append((resource.RLIMIT_NPROC, limits.processes))
    return found


def why_not_ready(what: str, errors: Path | bytes) -> SandboxError:
    """Return the error of an init process that ended before it listened."""
    text = errors if isinstance(errors, bytes) else errors.read_bytes()
    return SandboxError(f"{what}: {text[-_TAIL:].decode(errors='replace').strip()}")
