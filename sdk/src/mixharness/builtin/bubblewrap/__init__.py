"""The `bubblewrap` sandbox: namespaces of this machine's own system, for where there is no Docker.

Needs `bwrap` and no root. Programs see the machine's `/usr` read-only, an empty system around it,
and no network but the proxy; there are no images.
"""

from mixharness.builtin.bubblewrap.backend import BubblewrapBackend, BubblewrapConfig

__all__ = ["BubblewrapBackend", "BubblewrapConfig"]
