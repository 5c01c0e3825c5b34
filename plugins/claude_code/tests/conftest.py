import anyio
import pytest

from mixharness import Program
from mixharness.rollout.cache import cache_dir
from mixharness_claude_code import ClaudeCode, ClaudeCodeConfig


@pytest.fixture(scope="session")
def program() -> Program:
    """The real program; installed when it is missing, so that no test is skipped."""
    return anyio.run(ClaudeCode(ClaudeCodeConfig()).install, cache_dir())
