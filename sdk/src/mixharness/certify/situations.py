"""The situations every harness is put into, as data. What harnesses make of them is not here."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from mixharness.types import CallRole


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Call(_Data):
    """One tool call of the policy; exactly one key. Names and keys come from what is offered."""

    shell: str = ""
    """A command for the shell tool."""
    shell_json: str = ""
    """Arguments of the shell tool, character for character, as a JSON object. `@command@` stands
    for the name of the command's key; `@number@` for `"key": 5.0e3,` where there is a key that
    takes a number."""
    write: str = ""
    """A line for the writing tool to put into `b.txt`; `echo` in the shell where there is none."""
    agent: str = ""
    """A task for the tool that starts a sub-agent."""

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if sum(map(bool, (self.shell, self.shell_json, self.write, self.agent))) != 1:
            raise ValueError("a call has exactly one of shell, shell_json, write and agent")
        return self


class Turn(_Data):
    """One answer of the policy."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    when: str = ""
    """Regular expression; said whenever it is found in the prompt. Turns without one are said one
    after the other."""
    times: int = Field(default=1, ge=1)
    """Said this many times in a row."""
    slow: bool = False
    """Sampled for the long time (`--long-s`)."""
    wait_s: float = Field(default=0.0, ge=0.0)
    """Sampled for this long."""
    fails: bool = False
    """The engine raises when it is first asked for this turn."""


class Fault(_Data):
    """What befalls one model request on its way; exactly one of `status` and `cut`."""

    at: int = Field(default=1, ge=0)
    """Number of the model request, from 0; retries count."""
    status: int = 0
    """Answered with this HTTP status, and never seen by the proxy."""
    cut: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The connection is cut when this share of the answer's body was sent."""
    streams_only: bool = False
    """Strikes the first streaming request from number `at` on."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.status) == bool(self.cut):
            raise ValueError("a fault has exactly one of status and cut")
        return self


class Situation(_Data):
    """A task, what the policy does in it, and what goes wrong."""

    name: str
    about: str
    prompt: str = "Copy a.txt to b.txt."
    files: dict[str, str] = {"a.txt": "alpha\n"}
    turns: tuple[Turn, ...]
    fault: Fault | None = None
    exit: str = "completed"
    """How the rollout ends, unless a plugin says otherwise: `completed`, or a kind of failure."""
    role: CallRole | None = None
    """A role that has to occur, or the situation did not happen."""
    seen: str = ""
    """Regular expression that some prompt has to hold, or the situation did not happen."""
    open_ended: bool = False
    """How many calls it takes is the program's business."""

    @property
    def in_order(self) -> tuple[Turn, ...]:
        """Return the turns that are said one after the other, repeated ones written out."""
        return tuple(t for turn in self.turns if not turn.when for t in [turn] * turn.times)

    @property
    def calls(self) -> int | None:
        """Return how many model calls it takes, unless a plugin says otherwise."""
        return None if self.open_ended else len(self.in_order)


@cache
def load_situations() -> tuple[Situation, ...]:
    """Return all situations, in the order they are reported."""
    text = files("mixharness.certify").joinpath("situations.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["situation"]
    return TypeAdapter(tuple[Situation, ...]).validate_python(listed)
