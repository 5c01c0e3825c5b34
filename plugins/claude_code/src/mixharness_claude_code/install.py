"""Which release of the program is installed. How is the SDK's; running it is harness.py's."""

from __future__ import annotations

from mixharness.npm import NpmRelease, linux_architecture

NAME = "claude_code"
PACKAGE = "@anthropic-ai/claude-code"


def release(version: str) -> NpmRelease:
    """Return a release with its native glibc binary, which needs no Node to run.

    Raises:
        OSError: there is none for this machine.
    """
    native = f"node_modules/{PACKAGE}-linux-{linux_architecture(NAME)}"
    return NpmRelease(harness=NAME, package=PACKAGE, version=version, executable=f"{native}/claude")
