"""The office's words: skills, cues and the wording of each split, read from words.toml.

Nothing is generated here.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict

Split = Literal["train", "held_out", "cold_start"]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Skill(_Frozen):
    """One kind of office work: read a file, decide on one of six answers, act on the file.

    `{answer}` in `command`, `result` and `appended` stands for the chosen answer.
    """

    file: str
    """The file to read, and the only one that the prompt names."""
    command: str
    """The shell command that does the work."""
    result: str
    """Where the file is afterwards."""
    appended: str = ""
    """The line the file has gained; empty for none."""
    folders: bool = False
    """Whether the workspace has one folder per answer."""
    cues: dict[str, tuple[str, ...]]
    """Answer to the words that point to it."""

    def decide(self, text: str) -> tuple[str, str] | None:
        """Return the last cue word in `text` and the answer it points to, or None without any."""
        answers = {cue: answer for answer, cues in self.cues.items() for cue in cues}
        found = [word for word in re.findall(r"\w+", text.lower()) if word in answers]
        return (found[-1], answers[found[-1]]) if found else None


class Wording(_Frozen):
    """The names and sentences of one split."""

    prompts: dict[str, tuple[str, ...]]
    """Skill to prompts; those under `any` are for every skill, with `{file}` and names to fill in."""
    persons: tuple[str, ...]
    firms: tuple[str, ...]
    templates: tuple[str, ...]


class Words(_Frozen):
    """All of words.toml."""

    skill: dict[str, Skill]
    wording: dict[Split, Wording]


@cache
def load_words() -> Words:
    """Read the package's words.toml once."""
    text = files("mixharness_office").joinpath("words.toml").read_text(encoding="utf-8")
    return Words.model_validate(tomllib.loads(text))
