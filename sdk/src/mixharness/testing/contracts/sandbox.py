"""The contract of sandboxes: commands, files, limits, isolation, release.

The backend's image needs `sh`, `bash`, coreutils, `find`, `setsid` and `python3`. No behaviour is
skipped: where a backend differs it says so in `differs`, and what holds instead is asserted.
"""

from __future__ import annotations

import pytest

from mixharness.testing.contracts.sandboxes.base import Behaviour
from mixharness.testing.contracts.sandboxes.commands import CommandBehaviours
from mixharness.testing.contracts.sandboxes.files import FileBehaviours
from mixharness.testing.contracts.sandboxes.isolation import IsolationBehaviours
from mixharness.testing.contracts.sandboxes.limits import LimitBehaviours
from mixharness.testing.contracts.sandboxes.release import ReleaseBehaviours

__all__ = ["Behaviour", "SandboxContract"]


@pytest.mark.anyio
class SandboxContract(
    CommandBehaviours,
    FileBehaviours,
    IsolationBehaviours,
    LimitBehaviours,
    ReleaseBehaviours,
):
    """A sandbox runs commands, keeps files, limits and hides, and leaves nothing behind.

    Subclass it, give the fixture `component`, and declare in `differs` what holds otherwise:

        class TestMine(SandboxContract):
            differs = frozenset({Behaviour.IMAGES})
    """
