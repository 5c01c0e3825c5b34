"""The `local` sandbox: processes of an unprivileged user on this machine, no container.

It isolates files, processes and resources of one rollout from another's; it is no defence against
an attack on the kernel, and the network is the host's.
"""

from mixharness.builtin.local.backend import LocalSandboxBackend, LocalSandboxConfig

__all__ = ["LocalSandboxBackend", "LocalSandboxConfig"]
