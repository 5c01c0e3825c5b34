"""Keys of `[sandbox] name = "docker"`, and where things stand in a container."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from mixharness.builtin.docker.image_name import DEFAULT_IMAGE
from mixharness.component import ComponentConfig
from mixharness.types import Limits

WORKSPACE = "/workspace"
HOME = "/home/sandbox"
TMP = "/tmp"
PROGRAM = "/opt/mixharness/program"


class DockerSandboxConfig(ComponentConfig):
    """Keys of `[sandbox] name = "docker"`."""

    image: str = DEFAULT_IMAGE
    """Image of tasks that name none; it needs `sh` and `tar`. The default one is made by
    `mixharness sandbox build`."""
    pool: int = Field(default=0, ge=0)
    """Started containers kept ready for each kind of sandbox (image, program, workspace, limits),
    for the eight kinds used last. Each is used once."""
    read_only: bool = True
    """Let programs write to the workspace, their home and `/tmp` alone. Without it they can write
    wherever the image lets them, and that is held by no limit."""
    root: bool = False
    """Run programs as root, for images that need it; they have no other right of root's. They can
    then end their own sandbox, which counts as the infrastructure's fault."""
    firewall: bool = True
    """Close all of this machine but the proxy's port to sandboxes, and refuse at once what would
    time out; needs root and iptables."""
    egress: tuple[str, ...] = ()
    """Places outside that programs may connect to by TCP, as `host:port`; looked up when the run
    starts. Everything else stays closed. Needs the firewall."""
    snapshot_files: int = 20_000
    """Most files and folders in a workspace that is graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """All that is settled when a container starts: two of one kind can take each other's place."""

    image: str
    program: Path | None
    workspace: str
    network: bool
    limits: Limits
