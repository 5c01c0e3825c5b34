"""The error tree, and the one place that says whose fault a raise in a plugin was.

    MixHarnessError
    ├── ConfigError            the run file or a flag is wrong     exit 2, no traceback
    ├── PluginError            a named plugin is broken or clashes exit 2, cause chained
    ├── ProgramMissingError    a harness program is not installed  exit 2, with the command
    ├── TemplateError          no renderer bridges this template   exit 2
    └── RolloutError           recorded as a Failure, counted, never stops a run
        ├── SandboxError   HarnessError   VerifierError   EngineError   ProxyError

Plugins never import these: they raise plain Python errors, and `boundary` attributes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class MixHarnessError(Exception):
    """Base of all errors this package raises on purpose."""


class ConfigError(MixHarnessError):
    """The run file or a flag is wrong; holds every problem at once.

    Attributes:
        problems: (path, message) pairs, path as in the run file.
    """

    def __init__(self, where: str, problems: Sequence[tuple[str, str]]) -> None:
        self.where = where
        self.problems = tuple(problems)
        width = max((len(path) for path, _ in problems), default=0)
        lines = [f"  {path:<{width}}  {message}" for path, message in problems]
        super().__init__("\n".join([f"config error in {where}", *lines]))


class PluginError(MixHarnessError):
    """A plugin that the run file names is broken, or two plugins claim one name."""


class ProgramMissingError(MixHarnessError):
    """A harness program is not installed; the message holds the command that installs it."""


class TemplateError(MixHarnessError):
    """No renderer here can extend this chat template without re-rendering history."""


class RolloutError(MixHarnessError):
    """Something in one rollout went wrong; recorded there, the run goes on."""


class SandboxError(RolloutError):
    """The sandbox backend raised."""


class HarnessError(RolloutError):
    """The harness plugin raised."""


class VerifierError(RolloutError):
    """The verifier raised."""


class EngineError(RolloutError):
    """The engine raised or died."""


class ProxyError(RolloutError):
    """Our own proxy raised."""


@contextmanager
def boundary(error: type[RolloutError], what: str) -> Iterator[None]:
    """Re-raise whatever plugin code raises as `error`, naming `what`; our own errors pass."""
    try:
        yield
    except MixHarnessError:
        raise
    except Exception as exc:
        raise error(f"{what}: {type(exc).__name__}: {exc}") from exc
