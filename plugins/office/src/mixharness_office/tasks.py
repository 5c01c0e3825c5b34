"""The task source `office`: a seeded generator of small tasks. Words are in words.toml."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from mixharness import ComponentConfig, Task, TaskSource
from pydantic import Field, field_validator

from mixharness_office.words import Skill, Split, Wording, load_words

_MAX_REDRAWS = 1000


class OfficeTasksConfig(ComponentConfig):
    """What to generate."""

    split: Split = "train"
    """Splits share no sentence, template, name or combination of words."""
    count: int = Field(default=120, ge=1)
    """Number of tasks; about 15,000 per skill can differ."""
    seed: int = 0
    skills: tuple[str, ...] = ("triage", "approval", "reply")
    """Taken in turn, one task each."""

    @field_validator("skills")
    @classmethod
    def _skills_exist(cls, skills: tuple[str, ...]) -> tuple[str, ...]:
        known = load_words().skill
        unknown = sorted(set(skills) - set(known))
        if unknown or not skills:
            raise ValueError(f"unknown skills {unknown}; choose from {sorted(known)}")
        return skills


class OfficeTasks(TaskSource[OfficeTasksConfig]):
    """Yields `count` tasks with distinct texts; answers come equally often in each skill."""

    name = "office"
    config_type = OfficeTasksConfig

    def __len__(self) -> int:
        """Return the number of tasks."""
        return self.config.count

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks; a pure function of the config."""
        config, words = self.config, load_words()
        wording = words.wording[config.split]
        rng = random.Random(f"{config.split}/{config.seed}")
        decks = {name: _deal(words.skill[name], rng) for name in config.skills}
        seen: set[str] = set()
        for index in range(config.count):
            name = config.skills[index % len(config.skills)]
            skill = words.skill[name]
            answer, cue = next(decks[name])
            prompt = rng.choice(wording.prompts.get(name) or wording.prompts["any"])
            yield Task(
                id=f"office-{config.split}-{config.seed}-{index:05d}-{name}",
                prompt=prompt.format(file=skill.file, **_names(wording, rng)),
                verifier="office",
                metadata={"skill": name},
                **_files(skill, answer, _new_text(wording, cue, rng, seen)),
            )


def _deal(skill: Skill, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Deal all (answer, cue) pairs of a skill in a random order, again and again."""
    pairs = [(answer, cue) for answer, cues in skill.cues.items() for cue in cues]
    while True:
        yield from rng.sample(pairs, len(pairs))


def _new_text(wording: Wording, cue: str, rng: random.Random, seen: set[str]) -> str:
    for _ in range(_MAX_REDRAWS):
        text = rng.choice(wording.templates).format(cue=cue, **_names(wording, rng)) + "\n"
        if text not in seen:
            seen.add(text)
            return text
    raise ValueError("`count` is more than there are different tasks in this split")


def _names(wording: Wording, rng: random.Random) -> dict[str, str]:
    return {"person": rng.choice(wording.persons), "firm": rng.choice(wording.firms)}


def _files(skill: Skill, answer: str, text: str) -> dict[str, Any]:
    """Return the workspace before, and the one that the verifier wants to see after."""
    # A folder exists only with a file in it.
    folders = {f"{a}/.keep": "" for a in skill.cues} if skill.folders else {}
    after = {skill.result.format(answer=answer): text + skill.appended.format(answer=answer)}
    return {"files": {skill.file: text, **folders}, "answer": {"files": {**after, **folders}}}
