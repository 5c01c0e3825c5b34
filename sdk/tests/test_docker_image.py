"""The base image: what is in it, both ways to it, and that neither leaves anything behind."""

import asyncio
import gc
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import psutil
import pytest

from mixharness.builtin.docker import image
from mixharness.builtin.docker.image_name import DEFAULT_IMAGE, IMAGE_VERSION
from mixharness.errors import PluginError, ProgramMissingError

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

NOWHERE = "localhost:1/debian:none"
ARGUMENTS = ["--variant=minbase", f"--include={','.join(image.PACKAGES)}", image.SUITE]
ROOT_FROM_IMAGE = f"""#!{sys.executable}
import subprocess, sys, docker
*arguments, root = sys.argv[1:]
assert arguments == {ARGUMENTS}
container = docker.from_env().containers.create("{DEFAULT_IMAGE}")
try:
    subprocess.run(["mkdir", root], check=True)
    with subprocess.Popen(["tar", "-xC", root], stdin=subprocess.PIPE) as tar:
        for chunk in container.export():
            tar.stdin.write(chunk)
        tar.stdin.close()
finally:
    container.remove()
open(root + "/etc/hostname", "w").write("of this machine")
"""
FAILS = """#!/bin/sh
for root; do :; done
mkdir -p "$root/half"
echo "E: no such suite"
exit 7
"""
HANGS = """#!/bin/sh
for root; do :; done
mkdir -p "$root" && touch "$root/begun"
setsid sleep 4911 &
sleep 4911
"""


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    with image.connected() as client:
        yield client


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch, client: docker.DockerClient) -> Iterator[str]:
    """Let the image be made under a name of the test's own."""
    name = f"mixharness-test-image:{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(image, "DEFAULT_IMAGE", name)
    monkeypatch.setattr(image, "DEBIAN_IMAGE", NOWHERE)
    yield name
    if client.images.list(name):
        client.images.remove(name)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def debootstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A program of that name, first on the path; its text is the test's."""
    program = tmp_path / "bin" / "debootstrap"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def sleepers() -> int:
    return sum(p.info["cmdline"] == ["sleep", "4911"] for p in psutil.process_iter(["cmdline"]))


async def test_it_is_made_once(client: docker.DockerClient) -> None:
    said: list[str] = []
    assert await image.build_base_image(say=said.append) is False
    assert said == []
    labels = client.images.get(DEFAULT_IMAGE).labels
    assert labels[image.IMAGE_LABEL] == IMAGE_VERSION


async def test_it_holds_what_agents_need(client: docker.DockerClient) -> None:
    modules = "ssl, sqlite3, zoneinfo, csv, unittest, venv, pytest, yaml"
    zone = "zoneinfo.ZoneInfo('Europe/Berlin')"
    programs = "for each in bash sed grep awk ps tar; do command -v $each >&2 || exit 1; done"
    certificates = "test -s /etc/ssl/certs/ca-certificates.crt"
    script = f'python -c "import {modules}; {zone}" && {certificates} && {programs} && echo all'
    assert client.containers.run(DEFAULT_IMAGE, ["sh", "-c", script], remove=True) == b"all\n"


@pytest.mark.slow
async def test_debootstrap_makes_it_and_force_makes_it_anew(
    client: docker.DockerClient, name: str, temporary: Path, debootstrap: Path
) -> None:
    debootstrap.write_text(ROOT_FROM_IMAGE)
    said: list[str] = []
    assert await image.build_base_image(say=said.append) is True
    assert said[-2:] == [f"debootstrap of {image.SUITE}", "importing the files"]
    first = client.images.get(name)
    assert first.labels == {image.IMAGE_LABEL: IMAGE_VERSION}
    assert first.attrs["Config"]["Cmd"] == ["/bin/bash"]
    script = ["sh", "-c", "ls /var/lib/apt/lists /usr/share/doc; grep -c machine /etc/hostname"]
    shown = client.containers.run(name, [*script[:2], f"{script[2]} || true"], remove=True)
    assert shown.split()[-1] == b"0"

    assert await image.build_base_image() is False
    assert await image.build_base_image(force=True) is True
    assert client.images.get(name).id != first.id
    with pytest.raises(docker.errors.ImageNotFound):
        client.images.get(first.id)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
async def test_a_debian_image_is_enough(
    client: docker.DockerClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base image stands for Debian's: apt goes to the network and finds all there already."""
    monkeypatch.setattr(image, "DEBIAN_IMAGE", DEFAULT_IMAGE)
    assert await image.build_base_image() is True
    assert client.images.get(name).labels[image.IMAGE_LABEL] == IMAGE_VERSION


async def test_a_failing_debootstrap_is_shown_and_leaves_nothing(
    client: docker.DockerClient, name: str, temporary: Path, debootstrap: Path
) -> None:
    debootstrap.write_text(FAILS)
    with pytest.raises(PluginError, match=r"failed with exit code 7:\nE: no such suite"):
        await image.build_base_image()
    assert list(temporary.iterdir()) == []
    assert client.images.list(name) == []


async def test_an_interrupted_debootstrap_leaves_nothing(
    client: docker.DockerClient, name: str, temporary: Path, debootstrap: Path
) -> None:
    debootstrap.write_text(HANGS)
    building = asyncio.create_task(image.build_base_image())
    while not list(temporary.glob("*/root/begun")) or sleepers() < 2:
        await asyncio.sleep(0.02)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert list(temporary.iterdir()) == []
    async with asyncio.timeout(10):
        while sleepers():
            await asyncio.sleep(0.02)


async def test_without_root_it_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PluginError, match="needs root"):
        await image.build_base_image()


async def test_without_debootstrap_it_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramMissingError, match="apt-get install debootstrap"):
        await image.build_base_image()


# The docker package leaves the socket of a connection that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_without_an_engine_it_says_where_none_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(PluginError, match=f"no Docker engine answers at unix://{tmp_path}/none"):
        await image.build_base_image()
    gc.collect()
