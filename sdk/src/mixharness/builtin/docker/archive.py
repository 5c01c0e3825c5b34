"""Workspaces as archives, in and out. An archive from a sandbox is hostile: it is read, not obeyed.

No link is ever made on this machine, and no name leads out of the target.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec
from mixharness.snapshot import MAX_DEPTH, MAX_PATH_BYTES, MIB

_ENTRY_BYTES = 4096
"""More than an archive needs for an entry beside its data."""


class Spool:
    """Keeps an archive as it arrives, up to a limit."""

    def __init__(self, file: BinaryIO, max_mb: int, max_files: int) -> None:
        self._file = file
        self._left = max_mb * MIB + max_files * _ENTRY_BYTES
        self._what = _what(max_mb, max_files)

    def __call__(self, chunk: bytes) -> None:
        """Take a chunk.

        Raises:
            OSError: `EFBIG`, the archive is larger than any within the limits.
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise OSError(errno.EFBIG, f"the workspace holds more than {self._what}")
        self._file.write(chunk)


def pack(spec: SandboxSpec, file: BinaryIO) -> None:
    """Write an archive of the folders and files of a spec, and go to its beginning; blocks.

    Raises:
        SandboxError: a name lies outside the workspace, or a folder is not there.
    """
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, source in _entries(spec).items():
            _add(tar, name, source)
    file.seek(0)


def _entries(spec: SandboxSpec) -> dict[str, Path | bytes]:
    """Return what the workspace is to hold by name; later ones take the place of earlier ones."""
    for name in (*spec.folders, *spec.files):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise SandboxError(f"workspace file {name!r} must be a relative path without '..'")
    entries: dict[str, Path | bytes] = {}
    for name, folder in spec.folders.items():
        if not folder.is_dir():
            raise SandboxError(f"workspace folder {name!r}: there is no folder {folder}")
        top = PurePosixPath(name)
        entries = {k: v for k, v in entries.items() if not PurePosixPath(k).is_relative_to(top)}
        _make_way(entries, top)
        entries |= {str(top / below): path for below, path in [("", folder), *_walk(folder)]}
    for name, text in spec.files.items():
        _make_way(entries, PurePosixPath(name))
        entries[str(PurePosixPath(name))] = text.encode()
    entries.pop(".", None)  # the workspace is there
    return entries


def _make_way(entries: dict[str, Path | bytes], name: PurePosixPath) -> None:
    """Drop files that stand where folders must."""
    for parent in map(str, name.parents):
        above = entries.get(parent)
        if isinstance(above, bytes) or (above is not None and not above.is_dir()):
            del entries[parent]


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield what is in a folder; links and special files are left out."""
    for root, dirs, files in os.walk(folder):
        for name in (*dirs, *files):
            path = Path(root, name)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                yield path.relative_to(folder).as_posix(), path


def _add(tar: tarfile.TarFile, name: str, source: Path | bytes) -> None:
    info = tarfile.TarInfo(name)
    info.mtime = int(time.time())
    info.mode = 0o644
    if isinstance(source, bytes):
        info.size = len(source)
        tar.addfile(info, io.BytesIO(source))
        return
    status = source.stat()
    info.mode = stat.S_IMODE(status.st_mode) & 0o777
    if source.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700
        tar.addfile(info)
        return
    with source.open("rb") as file:
        info.size = status.st_size
        tar.addfile(info, file)


def unpack(archive: BinaryIO, target: Path, max_mb: int, max_files: int) -> None:
    """Write the plain files and folders of a hostile archive to `target`; blocks.

    Raises:
        OSError: `EFBIG` when it holds more than the limits; no more than these was written.
        tarfile.TarError: it ends too early.
    """
    target.mkdir(parents=True, exist_ok=True)
    size = count = 0
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        written: dict[str, Path] = {}
        for member in tar:
            name = _inside(member.name)
            if not name:
                continue
            source = written.get(_inside(member.linkname)) if member.islnk() else None
            size += source.stat().st_size if source else member.size
            count += 1
            if size > max_mb * MIB or count > max_files:
                what = _what(max_mb, max_files)
                raise OSError(errno.EFBIG, f"the workspace holds more than {what}", str(target))
            if member.isdir():
                (target / name).mkdir(parents=True, exist_ok=True)
            elif member.isreg() or source:
                with source.open("rb") if source else _data(tar, member) as data:
                    _write(target / name, data, member.mode)
                written[name] = target / name


def _inside(name: str) -> str:
    """Return a name as a path inside the workspace; empty where it is none."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) == ".":
        return ""
    if len(path.parts) > MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
        what = f"folders deeper than {MAX_DEPTH} or longer than {MAX_PATH_BYTES}"
        raise OSError(errno.EFBIG, f"the workspace holds {what}")
    return str(path)


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo) -> BinaryIO:
    data = tar.extractfile(member)
    assert data is not None  # a regular file
    return data  # type: ignore[return-value]


def _write(path: Path, data: BinaryIO, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        shutil.copyfileobj(data, file)
        os.fchmod(file.fileno(), (mode & 0o777) | stat.S_IRUSR)


def _what(max_mb: int, max_files: int) -> str:
    return f"{max_mb} MiB or {max_files} files"
