"""Copying a workspace in and out of a sandbox without following anything planted in it.

It opens no sandbox; backends that fill a folder of this machine call `fill`, all call `copy_tree`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec

MIB = 1 << 20
MAX_DEPTH = 128
MAX_PATH_BYTES = 2048
"""Half of what a system call takes: the rest is for where the copy lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLimits:
    """How much a snapshot may hold; beyond, it is the policy's resource limit."""

    max_mb: int
    max_files: int
    uid: int
    """Only this user's files are copied: a hard link to anybody else's is left out."""


def fill(workspace: Path, spec: SandboxSpec) -> None:
    """Put the folders and files of a spec into a workspace on this machine.

    Raises:
        SandboxError: a name lies outside the workspace.
    """
    for name in (*spec.folders, *spec.files):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise SandboxError(f"workspace file {name!r} must be a relative path without '..'")
    for name, folder in spec.folders.items():
        target = _reach(workspace, name)
        for left in list(target.iterdir()) if target.is_dir() else [target]:
            _remove(left)
        copy_tree(folder, target)
    for name, text in spec.files.items():
        file = _reach(workspace, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")


def _reach(workspace: Path, name: str) -> Path:
    """Return a path in the workspace after removing files that stand where folders must."""
    target = workspace / name
    for parent in target.relative_to(workspace).parents:
        if (workspace / parent).is_file():
            (workspace / parent).unlink()
    return target


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_tree(source: Path, target: Path, limits: SnapshotLimits | None = None) -> None:
    """Copy regular files and folders; links, devices, sockets and pipes are left out.

    Modes of files are kept, without set-user-id and the like. Without limits the source is
    trusted: any size and owner.

    Raises:
        OSError: `EFBIG` when the workspace is larger than the limits, or nested too deep.
    """
    target.mkdir(parents=True, exist_ok=True)
    room = _Room(source, limits)
    # Opening by descriptor, never by path: a folder swapped for a link is not followed.
    for root, dirs, files, fd in os.fwalk(source, follow_symlinks=False):
        below = Path(root).relative_to(source)
        room.enter(below, len(dirs) + len(files))
        for name in dirs:
            if _is_folder(fd, name):
                (target / below / name).mkdir(exist_ok=True)
        for name in files:
            _copy_file(fd, name, target / below / name, room)


class _Room:
    """What may still be copied. Asked before each copy, so that the host's disk never pays."""

    def __init__(self, source: Path, limits: SnapshotLimits | None) -> None:
        self._source = source
        self._limits = limits
        self._bytes_left = limits.max_mb * MIB if limits else 0
        self._entries_left = limits.max_files if limits else 0

    def enter(self, below: Path, entries: int) -> None:
        if len(below.parts) > MAX_DEPTH or len(os.fsencode(below)) > MAX_PATH_BYTES:
            raise self._full(f"folders deeper than {MAX_DEPTH} or longer than {MAX_PATH_BYTES}")
        self._entries_left -= entries
        if self._limits and self._entries_left < 0:
            raise self._full(f"more than {self._limits.max_files} files")

    def takes(self, status: os.stat_result) -> bool:
        """Say whether a file is one to be copied."""
        if not stat.S_ISREG(status.st_mode):
            return False
        if self._limits is None:
            return True
        if status.st_uid != self._limits.uid:
            return False
        self._bytes_left -= status.st_size
        if self._bytes_left < 0:
            raise self._full(f"more than {self._limits.max_mb} MiB")
        return True

    def _full(self, what: str) -> OSError:
        return OSError(errno.EFBIG, f"the workspace holds {what}", str(self._source))


def _is_folder(folder: int, name: str) -> bool:
    """Say whether an entry is a folder; a link to one is listed among folders, too."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:  # gone
        return False


def _copy_file(folder: int, name: str, target: Path, room: _Room) -> None:
    """Copy one file with its mode if it is a plain one that may be copied."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:  # a link, a socket, closed to us, or gone
        return
    with os.fdopen(fd, "rb") as source:
        status = os.fstat(fd)
        if room.takes(status):
            with target.open("wb") as copy:
                shutil.copyfileobj(source, copy)
            target.chmod(status.st_mode & 0o777 | stat.S_IRUSR)
