"""Where installed harness programs live. Installing them is each harness's."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `MIXHARNESS_CACHE`, else a folder that the sandbox's user can enter.

    As root that is under /var/cache, because root's home is closed to the unprivileged user that
    runs the programs.
    """
    chosen = os.environ.get("MIXHARNESS_CACHE")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/cache/mixharness")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mixharness"
