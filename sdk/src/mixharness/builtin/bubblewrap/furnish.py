"""Workspace, home and account of a sandbox, put there before any program of it runs.

The runner does it from outside, through the root folder that process 1 has handed out.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec
from mixharness.snapshot import fill

HOME, WORKSPACE, TMP = "/home/agent", "/workspace", "/tmp"
_TAKEN = ("bin", "dev", "lib", "lib64", "opt/mixharness", "proc", "sbin", "usr")


def check_workspace(path: str) -> None:
    """Refuse a workspace path that is the system's.

    Raises:
        ValueError: it is, or it is not absolute.
    """
    asked = PurePosixPath(path)
    if not asked.is_absolute() or ".." in asked.parts:
        raise ValueError(f"workspace {path!r} must be an absolute path without '..'")
    home = PurePosixPath(HOME)
    taken = any(asked.is_relative_to(f"/{each}") for each in _TAKEN)
    if taken or asked.is_relative_to(home) or home.is_relative_to(asked):
        raise ValueError(f"workspace {path!r} is the system's own in a bubblewrap sandbox")


def furnish(root: Path, spec: SandboxSpec, uid: int) -> None:
    """Make what belongs to the sandbox's user, and name that user.

    Raises:
        SandboxError: what the task brings does not fit.
    """
    workspace = spec.workspace or WORKSPACE
    try:
        for folder in (workspace, HOME):
            _make(root, PurePosixPath(folder))
            below(root, folder).chmod(0o700)
        fill(below(root, workspace), spec)
        for folder in (workspace, HOME):
            _own(below(root, folder), uid)
        _write(root, "/etc/passwd", f"agent:x:{uid}:{uid}::{HOME}:/bin/sh\n")
        _write(root, "/etc/group", f"agent:x:{uid}:\n")
        _write(root, "/etc/hosts", "127.0.0.1 localhost sandbox\n")
    except OSError as exc:
        raise SandboxError(f"the workspace cannot be put at {workspace}: {exc}") from exc


def below(root: Path, path: str) -> Path:
    """Return the runner's path of an absolute path in the sandbox."""
    return root / path.lstrip("/")


def _make(root: Path, folder: PurePosixPath) -> None:
    for path in (*reversed(folder.parents), folder):
        target = below(root, str(path))
        if not target.exists():
            target.mkdir()
            target.chmod(0o755)  # whatever the runner's umask is


def _own(folder: Path, uid: int) -> None:
    if os.geteuid() == 0:
        for each in (folder, *folder.rglob("*")):
            os.chown(each, uid, uid)


def _write(root: Path, path: str, text: str) -> None:
    _make(root, PurePosixPath(path).parent)
    below(root, path).write_text(text, encoding="utf-8")
    below(root, path).chmod(0o644)
