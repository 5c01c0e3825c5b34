"""The `docker` sandbox: an ephemeral container per rollout, on a network with one way out."""

from mixharness.builtin.docker.backend import DockerSandboxBackend
from mixharness.builtin.docker.config import DockerSandboxConfig

__all__ = ["DockerSandboxBackend", "DockerSandboxConfig"]
