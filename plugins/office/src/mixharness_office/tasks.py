"""The task source `office`: a seeded generator of small tasks. Words are in words.toml."""

from __future__ import annotations

import random
from collections.abc import Iterator

from mixharness import ComponentConfig, Task, TaskSource
from pydantic import Field, field_validator

from mixharness_office.words import Skill, Split, load_words

_MAX_REDRAWS = 1000
# An answer, and two cue words for it.
_Case = tuple[str, str, str]


class OfficeTasksConfig(ComponentConfig):
    """What to generate."""

    split: Split = "train"
    """Splits share no sentence, template, name or combination of words."""
    count: int = Field(default=120, ge=1)
    """Number of tasks; 13,000 per skill is about the most that differ."""
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
        rng = random.Random(f"{config.split}/{config.seed}")
        decks = {name: self._cases(words.skill[name], rng) for name in config.skills}
        seen: set[str] = set()
        for index in range(config.count):
            name = config.skills[index % len(config.skills)]
            case = next(decks[name])
            text = self._text(case, rng, seen)
            task_id = f"office-{config.split}-{config.seed}-{index:05d}-{name}"
            prompt = rng.choice(words.skill[name].prompts[config.split])
            yield _make_task(task_id, prompt, name, (case[0], text))

    def _cases(self, skill: Skill, rng: random.Random) -> Iterator[_Case]:
        """Deal all cases of a skill in a random order, again and again."""
        pairs = load_words().pairs[self.config.split]
        cases = [(a, cues[i], cues[j]) for a, cues in skill.cues.items() for i, j in pairs]
        while True:
            yield from rng.sample(cases, len(cases))

    def _text(self, case: _Case, rng: random.Random, seen: set[str]) -> str:
        wording = load_words().wording[self.config.split]
        for _ in range(_MAX_REDRAWS):
            first, second = rng.sample(case[1:], 2)
            template = f"{rng.choice(wording.openings)} {rng.choice(wording.closings)}\n"
            names = {"person": rng.choice(wording.persons), "firm": rng.choice(wording.firms)}
            text = template.format(a=first, b=second, **names)
            if text not in seen:
                seen.add(text)
                return text
        raise ValueError(f"count = {self.config.count} is more than there are different tasks")


def _make_task(task_id: str, prompt: str, skill_name: str, case: tuple[str, str]) -> Task:
    skill, (answer, text) = load_words().skill[skill_name], case
    # A folder exists only with a file in it.
    folders = {f"{a}/.keep": "" for a in skill.cues} if skill.folders else {}
    after = text + skill.appended.format(answer=answer)
    return Task(
        id=task_id,
        prompt=prompt,
        verifier="office",
        files={skill.file: text, **folders},
        answer={"files": {skill.result.format(answer=answer): after, **folders}},
        metadata={"skill": skill_name},
    )
