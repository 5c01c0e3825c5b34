import os
from pathlib import Path

import pytest

from mixharness.rollout.cache import cache_dir


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXHARNESS_CACHE", "/elsewhere")
    assert cache_dir() == Path("/elsewhere")


def test_root_installs_where_the_sandbox_user_can_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXHARNESS_CACHE", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cache_dir() == Path("/var/cache/mixharness")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    assert cache_dir() == Path("/home/me/.cache/mixharness")
