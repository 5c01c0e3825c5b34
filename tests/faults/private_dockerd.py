"""Runs a command beside a Docker engine of its own: `private_dockerd.py COMMAND ...`, as root.

Engine and command have process numbers, mounts and a network of their own, so that no other
engine of the machine is disturbed and nothing outlives the command. `DOCKER_HOST` names the engine;
SIGUSR1 to the command's parent restarts it. The base image is taken from the machine's own engine.
"""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import docker
from docker.errors import DockerException

from mixharness.builtin.docker.image_name import DEFAULT_IMAGE

ALONE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
INSIDE, IMAGE = "--inside", "image.tar"
START_LIMIT_S = 60.0
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


class Dockerd:
    """An engine with all its files in one folder. As the first process, it reaps what ends."""

    def __init__(self, folder: Path) -> None:
        self.host = f"unix://{folder}/docker.sock"
        self._log = folder / "dockerd.log"
        places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "docker.pid"}
        self._command = ["dockerd", f"--host={self.host}", "--containerd-namespace=mixharness-test"]
        self._command += [f"{option}={folder / name}" for option, name in places.items()]
        self._command += ["--containerd-plugins-namespace=mixharness-test-plugins"]
        self._pid = 0

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            outputs = [(os.POSIX_SPAWN_DUP2, log.fileno(), number) for number in (1, 2)]
            self._pid = os.posix_spawnp(
                self._command[0], self._command, os.environ, file_actions=outputs
            )
        ends = time.monotonic() + START_LIMIT_S
        while not self._answers():
            ended, _ = os.waitpid(self._pid, os.WNOHANG)
            if ended or time.monotonic() > ends:
                sys.exit(f"dockerd does not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, and with it all containers."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGTERM)
            os.waitpid(self._pid, 0)

    def restart(self, number: int, frame: FrameType | None) -> None:
        """Do what `systemctl restart docker` does."""
        self.stop()
        self.start()

    def client(self) -> docker.DockerClient:
        """Return a client of it."""
        return docker.DockerClient(base_url=self.host, timeout=300)

    def _answers(self) -> bool:
        try:
            with contextlib.closing(self.client()) as client:
                return bool(client.ping())
        except DockerException:
            return False


def bring_loopback_up() -> None:
    """Let processes of a new network reach each other at 127.0.0.1."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        _, flags, _ = struct.unpack("16sH14s", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | _IFF_UP, b""))


def wait_for(pid: int) -> int:
    """Return the exit code of a child; others that end in the meantime are forgotten."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def run_inside(folder: Path, command: list[str]) -> int:
    """Run the command and return its exit code; we are the first process."""
    bring_loopback_up()
    dockerd = Dockerd(folder)
    dockerd.start()
    try:
        with contextlib.closing(dockerd.client()) as client, (folder / IMAGE).open("rb") as file:
            client.images.load(file)
        signal.signal(signal.SIGUSR1, dockerd.restart)
        # Not by subprocess: it would reap the command in `restart`, and its exit code be lost.
        environment = {**os.environ, "DOCKER_HOST": dockerd.host}
        return wait_for(os.posix_spawnp(command[0], command, environment))
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        dockerd.stop()


def run(command: list[str]) -> int:
    """Fetch the image, and run the command in a world of its own."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="mixharness-dockerd-") as name:
        with contextlib.closing(docker.from_env()) as client, Path(name, IMAGE).open("wb") as file:
            for chunk in client.images.get(DEFAULT_IMAGE).save(named=DEFAULT_IMAGE):
                file.write(chunk)
        return subprocess.run([*ALONE, sys.executable, __file__, INSIDE, name, *command]).returncode


if __name__ == "__main__":
    if sys.argv[1] == INSIDE:
        sys.exit(run_inside(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(run(sys.argv[1:]))
