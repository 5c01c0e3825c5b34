"""The harness interface: an opaque agent program, and what it is given. rollout/ runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mixharness.component import Component, ConfigT
from mixharness.proxy.rules import MatchRule, RenderRule
from mixharness.sandbox import Sandbox
from mixharness.types import CallRole, HarnessExit, Limits, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An installed release on the host; sandboxes mount `path` read-only (ARCHITECTURE 5)."""

    name: str
    version: str
    path: Path
    executable: str
    """Relative to `path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """All that a harness gets for one rollout."""

    task: Task
    program: Program | None
    """None for a harness without a program of its own."""
    sandbox: Sandbox
    base_url: str
    """This rollout's own proxy address, secret included, without a trailing slash or `/v1`."""
    secret: str
    """Send it as the API key."""
    limits: Limits
    model: str = "policy"
    """Model name to ask for."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """What `role_of` may look at: one model request as it came in."""

    headers: Mapping[str, str]
    """Lower-case names."""
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Which agent made a call, and what for."""

    role: CallRole = CallRole.MAIN
    agent: str = ""


class Harness(Component[ConfigT], ABC):
    """An agent program that is run unmodified inside a sandbox (rule 12)."""

    dialects: ClassVar[tuple[str, ...]]
    """Wire dialects the program can speak: `anthropic_messages`, `openai_chat`, …"""
    match_rules: ClassVar[tuple[MatchRule, ...]] = ()
    """Beyond the built-in ones; shape fingerprints only, always on."""
    render_rules: ClassVar[tuple[RenderRule, ...]] = ()
    """Change what the policy reads; off unless the run file names them."""
    repair_malformed_calls: ClassVar[bool] = False
    """Show a malformed tool call as a call of a tool that does not exist, for a program that does
    not survive it as text; the policy still reads what it sampled."""
    ends_at_overflow: bool = False
    """Refuse a prompt that does not fit in the words of a used-up budget, for a program that would
    otherwise sum up its history and go on. The rollout ends as `context_overflow` either way."""
    certify: ClassVar[str] = "certify"
    """Folder beside this class's module with what each version of the program is expected to do
    under `mixharness certify`: `VERSION.toml`, or `plugin.toml` without a program."""

    async def install(self, cache: Path) -> Program | None:
        """Put the pinned release under `cache` (host side, once) and describe it.

        Called by `mixharness harness install` and, to look it up, before a run; must return at
        once when it is there. None means that the harness needs no program.

        Raises:
            Exception: anything; it is reported as this harness's.
        """
        return None

    def find(self, cache: Path) -> Program | None:
        """Return the installed program without installing.

        Raises:
            ProgramMissingError: it is not installed; the message has the command that does it.
        """
        return None

    @abstractmethod
    async def run(self, session: Session) -> HarnessExit:
        """Run the program on the task to its end, through `session.sandbox`.

        Called once per rollout, many at a time, in the runner's event loop. A raise is recorded as
        this rollout's failure. Cancelled when a clock runs out; the sandbox kills what is left.
        """

    def role_of(self, request: RequestView) -> CallIdentity | None:
        """Tell from hints of the program who made a call; None leaves it to structure."""
        return None
