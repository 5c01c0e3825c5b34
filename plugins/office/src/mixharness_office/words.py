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

NOTE, REGISTER = "note.txt", "register.txt"
"""The file to read, and the one to write a line into: the note's subject and its folder."""

Split = Literal["train", "held_out", "cold_start"]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Skill(_Frozen):
    """One way to sort the note: the folders, and the words that point to each."""

    cues: dict[str, tuple[str, ...]]
    """Folder to cue words; no cue belongs to two folders of any skill."""


class Wording(_Frozen):
    """The names and sentences of one split."""

    kinds: dict[str, str]
    """Skill to what it is called in this split's prompts."""
    prompts: tuple[str, ...]
    """Each has a slot for one of `kinds`."""
    persons: tuple[str, ...]
    firms: tuple[str, ...]
    asides: tuple[str, ...] = ()
    """Phrases that say nothing, for prompts and templates that have a slot for them."""
    templates: tuple[str, ...]


class Words(_Frozen):
    """All of words.toml."""

    skill: dict[str, Skill]
    wording: dict[Split, Wording]

    def decide(self, text: str) -> tuple[Skill, str, str] | None:
        """Return the last cue word in `text` with its skill and folder, as (skill, cue, folder)."""
        pointers = {
            cue: (skill, cue, folder)
            for skill in self.skill.values()
            for folder, cues in skill.cues.items()
            for cue in cues
        }
        found = [word for word in re.findall(r"\w+", text.lower()) if word in pointers]
        return pointers[found[-1]] if found else None


@cache
def load_words() -> Words:
    """Read the package's words.toml once."""
    text = files("mixharness_office").joinpath("words.toml").read_text(encoding="utf-8")
    return Words.model_validate(tomllib.loads(text))
