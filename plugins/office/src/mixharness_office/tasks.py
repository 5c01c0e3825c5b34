"""The task source `office`: a seeded generator of small tasks. Words are in words.toml."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from pydantic import Field, field_validator

from mixharness import ComponentConfig, Task, TaskSource
from mixharness_office.words import NOTE, REGISTER, Skill, Split, Wording, load_words

_MAX_REDRAWS = 1000


class OfficeTasksConfig(ComponentConfig):
    """What to generate."""

    split: Split = "train"
    """Splits share no sentence, template, name or combination of words."""
    count: int = Field(default=120, ge=1)
    """Number of tasks; in `train` and `held_out` some 6,000 per skill can differ."""
    seed: int = 0
    skills: tuple[str, ...] = ("topic", "unit", "reply")
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
            answer, cue = next(decks[name])
            prompt = rng.choice(wording.prompts).replace("{kind}", wording.kinds[name])
            yield Task(
                id=f"office-{config.split}-{config.seed}-{index:05d}-{name}",
                prompt=_fill(prompt, wording, rng),
                verifier="office",
                metadata={"skill": name},
                **_files(cue, answer, _new_text(wording, cue, rng, seen)),
            )


def _deal(skill: Skill, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Deal all (answer, cue) pairs of a skill in a random order, again and again."""
    pairs = [(answer, cue) for answer, cues in skill.cues.items() for cue in cues]
    while True:
        yield from rng.sample(pairs, len(pairs))


def _new_text(wording: Wording, cue: str, rng: random.Random, seen: set[str]) -> str:
    for _ in range(_MAX_REDRAWS):
        sentence = _fill(rng.choice(wording.templates).replace("{cue}", cue), wording, rng)
        text = f"{cue}: {sentence.removesuffix('.')}, {cue}.\n"
        if text not in seen:
            seen.add(text)
            return text
    raise ValueError("`count` is more than there are different tasks in this split")


def _fill(template: str, wording: Wording, rng: random.Random) -> str:
    """Put a fresh phrase or name into each slot; asides may hold slots of their own."""
    slots = (("{aside}", wording.asides), ("{person}", wording.persons), ("{firm}", wording.firms))
    for slot, choices in slots:
        while slot in template:
            template = template.replace(slot, rng.choice(choices), 1)
    return template[0].upper() + template[1:]


def _files(cue: str, answer: str, text: str) -> dict[str, Any]:
    """Return the workspace before, and the one that the verifier wants to see after."""
    return {
        "files": {NOTE: text},
        "answer": {"files": {NOTE: text, REGISTER: f"{cue} {answer}"}},
    }
