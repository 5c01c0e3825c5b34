"""Copying a workspace out of a sandbox without following anything planted in it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits:
    """How much a snapshot may hold; beyond, it is the policy's resource limit."""

    max_mb: int
    max_files: int
    uid: int
    """Only this user's files are copied: a hard link to anybody else's is left out."""


def copy_tree(source: Path, target: Path, limits: SnapshotLimits) -> None:
    """Copy regular files and folders; links, devices, sockets and pipes are left out.

    Raises:
        OSError: `EFBIG` when the workspace is larger than the limits.
    """
    target.mkdir(parents=True, exist_ok=True)
    room, count = limits.max_mb * MIB, 0
    # Opening by descriptor, never by path: a folder swapped for a link is not followed.
    for root, dirs, files, fd in os.fwalk(source, follow_symlinks=False):
        here = target / Path(root).relative_to(source)
        for name in dirs:
            (here / name).mkdir(exist_ok=True)
        for name in files:
            room -= _copy_file(fd, name, here / name, limits.uid)
        count += len(dirs) + len(files)
        if room < 0 or count > limits.max_files:
            what = f"{limits.max_mb} MiB or {limits.max_files} files"
            raise OSError(errno.EFBIG, f"the workspace holds more than {what}", str(source))


def _copy_file(folder: int, name: str, target: Path, uid: int) -> int:
    """Copy one file if it is a plain one of this user; return its size."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:  # a link, a socket, or gone
        return 0
    with os.fdopen(fd, "rb") as source:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            return 0
        with target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        return status.st_size
