"""Whose fault it was: from how a rollout ended to a Failure (ARCHITECTURE section 7).

The policy controls the sandbox, so what it can cause there is never the infrastructure's fault.
Trouble in grading is grading.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import orjson

from mixharness.errors import HarnessError, RolloutError
from mixharness.sandbox import Workspace
from mixharness.types import Failure, FailureKind, HarnessExit, ModelCall

_REASONS = {
    "max_turns": FailureKind.MAX_TURNS,
    "context_overflow": FailureKind.CONTEXT_OVERFLOW,
    "invalid_tool_loop": FailureKind.INVALID_TOOL_LOOP,
    "error": FailureKind.NONZERO_EXIT,
    "killed": FailureKind.NONZERO_EXIT,
}
_NOTES = {
    "overflow": FailureKind.CONTEXT_OVERFLOW,
    "context_overflow": FailureKind.CONTEXT_OVERFLOW,
    "max_turns": FailureKind.MAX_TURNS,
    "max_tokens": FailureKind.MAX_TOKENS,
    "cut_off": FailureKind.MAX_TOKENS,
}
_USED_UP = (FailureKind.MAX_TURNS, FailureKind.MAX_TOKENS)
OUTPUT_TAIL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the harness stopped: by itself, by a raise, or because a clock ran out."""

    exit: HarnessExit | None = None
    error: Exception | None = None
    out_of: FailureKind | None = None
    """`agent_timeout`, `wall_clock` or `settle_timeout`."""

    @property
    def clean(self) -> bool:
        """Say whether it ended as it should; it then got over any error on the way."""
        return (
            self.exit is not None
            and self.exit.reason == "completed"
            and self.exit.exit_code in (0, None)
        )

    @property
    def late_exit(self) -> bool:
        """Say whether the program had its result but had to be killed: no failure."""
        return self.clean and self.exit is not None and self.exit.exit_code is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that attribution looks at."""

    ending: Ending
    calls: Sequence[ModelCall]
    notes: Sequence[str]
    """Events of the proxy session, as `name` or `name: detail`."""
    redirect: str | None
    """Workspace file that sets a base URL."""
    limit: str = ""
    """Limit that the sandbox says was hit in it."""


def attribute(evidence: Evidence) -> Failure | None:
    """Return what went wrong, or None. The first that applies wins, most serious first."""
    notes = dict(_note(note) for note in evidence.notes)
    ending, sampled = evidence.ending, any(call.sampled_ids for call in evidence.calls)
    if "foreign_call" in notes:
        return Failure(kind=FailureKind.FOREIGN_CALL, detail=notes["foreign_call"])
    if evidence.redirect is not None:
        detail = f"{evidence.redirect} sets a base URL"
        return Failure(kind=FailureKind.ENDPOINT_REDIRECT, detail=detail)
    if "engine_error" in notes and not ending.clean:
        return Failure(kind=FailureKind.ENGINE_ERROR, detail=notes["engine_error"])
    if evidence.limit and evidence.calls and not ending.clean:
        detail = f"{evidence.limit}: {_detail(ending)}"
        return Failure(kind=FailureKind.RESOURCE_LIMIT, detail=detail)
    if ending.out_of in (FailureKind.WALL_CLOCK, FailureKind.SETTLE_TIMEOUT):
        return Failure(kind=ending.out_of, detail=_detail(ending))
    if not evidence.calls and not _policy_notes(notes):
        return Failure(kind=FailureKind.HARNESS_START, detail=_detail(ending) or "no model call")
    used_up = [kind for kind in _policy_notes(notes) if kind in _USED_UP]
    # However a program takes it that nothing is sampled any more; half an answer may look whole.
    if used_up and ("cut_off" in notes or not ending.clean):
        return Failure(kind=used_up[0], detail=_detail(ending))
    if _infrastructure(ending.error):
        return Failure(kind=FailureKind.CONNECTION, detail=_detail(ending))
    return _policy_failure(ending, notes, sampled)


def _policy_failure(ending: Ending, notes: Mapping[str, str], sampled: bool) -> Failure | None:
    """Attribute what happened after calls were made: it is the policy's."""
    if ending.out_of is not None:
        return Failure(kind=ending.out_of, detail=_detail(ending))
    if ending.exit is not None and ending.exit.reason in ("max_turns", "context_overflow"):
        return Failure(kind=_REASONS[ending.exit.reason], detail=_detail(ending))
    if not ending.clean and _policy_notes(notes):
        return Failure(kind=_policy_notes(notes)[0], detail=_detail(ending))
    if ending.exit is None:
        return Failure(kind=FailureKind.NONZERO_EXIT, detail=_detail(ending))
    if ending.exit.reason in _REASONS:
        return Failure(kind=_REASONS[ending.exit.reason], detail=_detail(ending))
    if ending.exit.exit_code not in (0, None):
        return Failure(kind=FailureKind.NONZERO_EXIT, detail=_detail(ending))
    if not sampled:
        return Failure(kind=FailureKind.NO_OUTPUT, detail="no call sampled a token")
    return None


def _infrastructure(error: Exception | None) -> bool:
    """Say whether a raise after calls came from below the harness, where no policy reaches."""
    if isinstance(error, HarnessError):
        return isinstance(error.__cause__, ConnectionError)
    return isinstance(error, RolloutError)


def _policy_notes(notes: Iterable[str]) -> list[FailureKind]:
    return [_NOTES[name] for name in notes if name in _NOTES]


def _note(note: str) -> tuple[str, str]:
    name, _, detail = note.partition(":")
    return name.strip(), detail.strip()


def _detail(ending: Ending) -> str:
    """Return a line for people: the raise, or the exit code and the end of the output."""
    if ending.error is not None:
        return f"{type(ending.error).__name__}: {ending.error}"
    if ending.exit is None:
        return ""
    return f"exit code {ending.exit.exit_code}: {ending.exit.output[-OUTPUT_TAIL:].strip()}"


def endpoint_redirect(workspace: Workspace) -> str | None:
    """Return a settings file in a dot-folder whose `env` sets some `…BASE_URL`, or None.

    Such a file can send a program's model calls elsewhere, past the record. It is reported
    whoever wrote it, also when the harness does not read it.
    """
    for name in workspace.list():
        path = PurePosixPath(name)
        hidden = any(part.startswith(".") for part in path.parts[:-1])
        if hidden and path.suffix == ".json" and _sets_base_url(workspace.read(name)):
            return name
    return None


def _sets_base_url(text: str | None) -> bool:
    if text is None or "BASE_URL" not in text:
        return False
    try:
        settings: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    environment = settings.get("env") if isinstance(settings, dict) else None
    return isinstance(environment, dict) and any("BASE_URL" in key for key in environment)
