"""The `bwrap` command line: which namespaces, what of the machine is seen. It starts nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mixharness.builtin.local import init
from mixharness.builtin.local.launch import PYTHON_FLAGS
from mixharness.errors import SandboxError
from mixharness.sandbox import SandboxSpec
from mixharness.snapshot import MIB

OLDEST = (0, 8)
PROGRAM_PATH = "/opt/mixharness/program"
INIT_PATH = "/opt/mixharness/init.py"
PYTHON_PATH = "/opt/mixharness/python"
SHARED_MEMORY_MB = 64
ROOT_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
# What programs need to find libraries, certificates and the time; no account, key or host name.
ETC_PROGRAMS = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "mime.types")
ETC_NETWORK = ("ca-certificates", "crypto-policies", "nsswitch.conf", "pki", "services", "ssl")
ETC_TIME = ("localtime", "timezone")
# Process 1 changes to the sandbox's user and kills its processes; nobody else has any right.
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")

# The interpreter itself: a virtual environment's link to it is not seen inside.
_PREFIX = Path(sys.base_prefix)
_PYTHON = f"{PYTHON_PATH}/{Path(sys.executable).resolve().relative_to(_PREFIX.resolve())}"
_LIBRARIES = f"{PYTHON_PATH}/lib"


def find_bwrap() -> str:
    """Return the path of a bwrap that is new enough.

    Raises:
        SandboxError: there is none; says how to get one.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError(
            "bwrap is not on the PATH; install the package `bubblewrap` "
            "(apt install bubblewrap, dnf install bubblewrap), or use the local sandbox"
        )
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = tuple(int(part) for part in said.split()[-1].split(".")) if said.strip() else ()
    if version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise SandboxError(f"{found} is {said.strip() or 'broken'}; {wanted} or newer is needed")
    return found


def command(bwrap: str, spec: SandboxSpec, *, root: bool, folders: Sequence[Path]) -> list[str]:
    """Return the command that runs init.py as process 1 of new namespaces; its CONFIG follows.

    Args:
        bwrap: path of the program.
        spec: the sandbox.
        root: started by root, whose process 1 then changes to the sandbox's user itself; anybody
            else needs a user namespace.
        folders: further host folders to show, read-only, at their own paths.
    """
    words = [bwrap, "--unshare-pid", "--as-pid-1", "--unshare-net", "--unshare-ipc"]
    words += ["--unshare-uts", "--hostname", "sandbox", "--unshare-cgroup-try"]
    if root:
        words += ["--cap-drop", "ALL"]
        words += [word for name in CAPABILITIES for word in ("--cap-add", name)]
    else:
        words += ["--unshare-user"]
    words += _file_system(spec, folders)
    return [*words, "--", _PYTHON, *PYTHON_FLAGS, INIT_PATH]


def _file_system(spec: SandboxSpec, folders: Sequence[Path]) -> Iterator[str]:
    # One file system of a set size holds all that can be written: workspace, home and /tmp.
    yield from ("--size", str(spec.limits.disk_mb * MIB), "--tmpfs", "/")
    yield from ("--proc", "/proc", "--dev", "/dev")
    shared = str(SHARED_MEMORY_MB * MIB)
    yield from ("--perms", "1777", "--size", shared, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    yield from ("--perms", "1777", "--dir", "/tmp", "--dir", "/var", "--dir", "/run")
    yield from ("--dir", "/etc")
    yield from ("--symlink", "../tmp", "/var/tmp")
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ROOT_LINKS:
        path = Path("/", name)
        if path.is_symlink():  # a relative one: it must not lead out of the sandbox
            yield from ("--symlink", f"usr/{name}", str(path))
        elif path.exists():
            yield from ("--ro-bind", str(path), str(path))
    for name in (*ETC_PROGRAMS, *ETC_NETWORK, *ETC_TIME):
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for folder in folders:
        yield from _shown(folder, str(folder))
    # Its own path may lead through a home folder, which would be seen then.
    yield from (*_shown(_PREFIX, PYTHON_PATH), "--setenv", "LD_LIBRARY_PATH", _LIBRARIES)
    yield from _shown(Path(init.__file__), INIT_PATH)
    if spec.program_path is not None:
        yield from _shown(spec.program_path, PROGRAM_PATH)


def _shown(path: Path, place: str) -> Iterator[str]:
    """Show a host path read-only; folders that bwrap makes unasked are closed to the user."""
    for parent in reversed(Path(place).parents[:-1]):
        yield from ("--dir", str(parent))
    yield from ("--ro-bind", str(path), place)
