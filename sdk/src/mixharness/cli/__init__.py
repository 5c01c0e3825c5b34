"""The command `mixharness`. Argument parsing and exit codes only; the work is done elsewhere."""

from mixharness.cli.main import main

__all__ = ["main"]
