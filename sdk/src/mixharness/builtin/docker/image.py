"""The default base image of docker sandboxes: what a task without an image of its own runs in.

Made once per machine by `mixharness sandbox build`, from a Debian image where a registry can be
reached, else by debootstrap. Harness programs are never in it: they are mounted.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import docker
import structlog
from anyio.to_thread import run_sync
from docker.errors import APIError, BuildError, DockerException, ImageNotFound
from requests.exceptions import RequestException

from mixharness.builtin.docker.image_name import DEFAULT_IMAGE, IMAGE_VERSION
from mixharness.errors import PluginError, ProgramMissingError

log = structlog.get_logger()

IMAGE_LABEL = "mixharness.base-image"
"""Containers inherit it, so it marks no container as ours."""
DEBIAN_IMAGE, SUITE = "debian:bookworm-slim", "bookworm"
PACKAGES = (
    *("ca-certificates", "procps", "tzdata"),
    *("python3", "python-is-python3", "python3-pytest", "python3-yaml"),  # what graders expect
)
PROBE_S = 10.0
_TAIL = 2000
_PASSED_ON = ("PATH", "http_proxy", "https_proxy", "no_proxy")

Say = Callable[[str], None]
"""Told what is being done now, for people."""

_LEFT_BY_APT = "rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb"
_NOT_READ = "rm -rf /usr/share/doc/* /usr/share/man/* /usr/share/info/*"
# The machine's own name and name servers, which debootstrap copies.
_NOT_OURS = "rm -f /etc/hostname /etc/resolv.conf"


@contextlib.contextmanager
def connected(timeout_s: float = 60.0) -> Iterator[docker.DockerClient]:
    """Yield a client of the engine that `DOCKER_HOST` names, by default the machine's.

    Raises:
        PluginError: none answers there.
    """
    try:
        client = docker.from_env(timeout=timeout_s)
    except DockerException as exc:
        where = os.environ.get("DOCKER_HOST", "/var/run/docker.sock")
        raise PluginError(
            f"no Docker engine answers at {where}: {exc}\n"
            "  start one (as root: dockerd), or set DOCKER_HOST to one that runs"
        ) from exc
    with contextlib.closing(client):
        yield client


async def build_base_image(*, force: bool = False, say: Say = log.info) -> bool:
    """Make the base image under the name `DEFAULT_IMAGE`.

    Args:
        force: make it anew where it is there.
        say: called with each stage.

    Returns:
        Whether it was made; False where it was there.

    Raises:
        PluginError: no Docker engine answers, or making it failed; has the end of what was printed.
        ProgramMissingError: neither a registry nor debootstrap is at hand.
    """
    with connected() as client:
        before = await run_sync(_image_id, client)
        if before and not force:
            return False
        say(f"looking for {DEBIAN_IMAGE}")
        if await run_sync(_debian_at_hand, client):
            say(f"installing packages in {DEBIAN_IMAGE}")
            await run_sync(_from_debian, client)
        else:
            await _from_debootstrap(client, say)
        if before:
            await run_sync(_remove, client, before)
    return True


def _image_id(client: docker.DockerClient) -> str:
    try:
        return str(client.images.get(DEFAULT_IMAGE).id)
    except ImageNotFound:
        return ""


def _remove(client: docker.DockerClient, image: str) -> None:
    """Remove an image, unless a container still uses it."""
    with contextlib.suppress(APIError):
        client.images.remove(image)


def _debian_at_hand(client: docker.DockerClient) -> bool:
    try:
        client.images.get(DEBIAN_IMAGE)
        return True
    except ImageNotFound:
        pass
    # The engine asks, not this process: it may know a mirror or a proxy.
    with connected(PROBE_S) as impatient:
        try:
            impatient.api.inspect_distribution(DEBIAN_IMAGE)
        except (APIError, RequestException) as exc:
            log.info("registry_not_reached", image=DEBIAN_IMAGE, error=str(exc))
            return False
    return True


def _from_debian(client: docker.DockerClient) -> None:
    try:
        client.images.build(
            fileobj=io.BytesIO(_dockerfile()),
            tag=DEFAULT_IMAGE,
            labels={IMAGE_LABEL: IMAGE_VERSION},
            network_mode="host",  # an engine without address translation can build, too
            rm=True,
            forcerm=True,
        )
    except (BuildError, APIError) as exc:
        printed = exc.build_log if isinstance(exc, BuildError) else ()
        tail = "".join(line.get("stream", "") for line in printed)[-_TAIL:]
        raise PluginError(f"{DEFAULT_IMAGE} cannot be built: {exc}\n{tail}") from exc


def _dockerfile() -> bytes:
    install = f"apt-get install -y --no-install-recommends {' '.join(PACKAGES)}"
    steps = ("apt-get update", install, _LEFT_BY_APT, _NOT_READ)
    return f'FROM {DEBIAN_IMAGE}\nRUN {" && ".join(steps)}\nCMD ["/bin/bash"]\n'.encode()


async def _from_debootstrap(client: docker.DockerClient, say: Say) -> None:
    if os.geteuid() != 0:
        raise PluginError(
            f"no registry has {DEBIAN_IMAGE}, and making {DEFAULT_IMAGE} with debootstrap needs "
            "root: run `mixharness sandbox build` as root once"
        )
    if shutil.which("debootstrap") is None:
        raise ProgramMissingError(
            f"no registry has {DEBIAN_IMAGE}, and debootstrap is not installed\n"
            "  install it with: apt-get install debootstrap"
        )
    with tempfile.TemporaryDirectory(prefix="mixharness-image-") as name:
        root = Path(name, "root")
        say(f"debootstrap of {SUITE}")
        include = f"--include={','.join(PACKAGES)}"
        await _run("debootstrap", "--variant=minbase", include, SUITE, str(root))
        tidy = f"{_LEFT_BY_APT} && {_NOT_READ} && {_NOT_OURS}"
        await _run("chroot", str(root), "/bin/sh", "-c", tidy)
        say("importing the files")
        await run_sync(_import, client, root)


async def _run(*command: str) -> None:
    """Run a command that mounts things and starts others; all of it ends with the command."""
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    process = await asyncio.create_subprocess_exec(
        *alone, *command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=environment
    )
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        tail = printed.decode(errors="replace")[-_TAIL:]
        raise PluginError(f"{command[0]} failed with exit code {process.returncode}:\n{tail}")


def _import(client: docker.DockerClient, root: Path) -> None:
    repository, _, tag = DEFAULT_IMAGE.partition(":")
    changes = [f"LABEL {IMAGE_LABEL}={IMAGE_VERSION}", 'CMD ["/bin/bash"]']
    command = ["tar", "--create", "--numeric-owner", "--one-file-system", f"--directory={root}"]
    with subprocess.Popen([*command, "."], stdout=PIPE) as tar:
        try:
            client.api.import_image_from_stream(
                tar.stdout, repository=repository, tag=tag, changes=changes
            )
        except (APIError, RequestException) as exc:
            tar.kill()
            raise PluginError(f"the engine does not import {DEFAULT_IMAGE}: {exc}") from exc
    if tar.returncode != 0:
        _remove(client, DEFAULT_IMAGE)
        raise PluginError(
            f"tar failed with exit code {tar.returncode}: {DEFAULT_IMAGE} is not made"
        )
