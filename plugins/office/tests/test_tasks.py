"""The generated tasks keep what the README promises. Words are held against each other as sets."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations

import pytest
from pydantic import ValidationError

from mixharness import Task
from mixharness_office.tasks import OfficeTasks, OfficeTasksConfig
from mixharness_office.words import NOTE, load_words

SPLITS = ("cold_start", "train", "held_out")
COUNT = 3000
# Function words: a pair with one of these is no combination.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about after all an and around are as at because before between but by can could for
        from has have here if in into is it its near not of on only or over so that the their then
        there this those through to under up we where who with without you""",
    )
)


def generate(split: str, count: int = COUNT, seed: int = 0) -> list[Task]:
    config = OfficeTasksConfig.model_validate({"split": split, "count": count, "seed": seed})
    return list(OfficeTasks(config).tasks())


def texts(task: Task) -> list[str]:
    return [task.prompt, *(text for text in task.files.values() if text)]


def sentences(tasks: list[Task]) -> set[str]:
    return {
        s.strip() for t in tasks for text in texts(t) for s in re.split(r"(?<=[.?!])\s", text) if s
    } - {""}


def word_pairs(tasks: list[Task]) -> set[tuple[str, str]]:
    pairs: set[tuple[str, str]] = set()
    for task in tasks:
        for text in texts(task):
            words = set(re.findall(r"[\w.]*\w", text.lower())) - STOP_WORDS
            pairs.update(combinations(sorted(words), 2))
    return pairs


@pytest.fixture(scope="module")
def by_split() -> dict[str, list[Task]]:
    return {split: generate(split) for split in SPLITS}


def test_the_same_config_gives_the_same_tasks() -> None:
    assert generate("train", 50, 3) == generate("train", 50, 3)
    assert generate("train", 50, 3) != generate("train", 50, 4)


def test_ids_and_texts_are_unique(by_split: dict[str, list[Task]]) -> None:
    for tasks in by_split.values():
        assert len({t.id for t in tasks}) == COUNT
        assert len({t.files[NOTE] for t in tasks}) == COUNT


@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_splits_share_no_sentence_and_no_word_pair(
    by_split: dict[str, list[Task]], one: str, other: str
) -> None:
    assert not sentences(by_split[one]) & sentences(by_split[other])
    assert not word_pairs(by_split[one]) & word_pairs(by_split[other])


@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_splits_share_no_template_and_no_name(one: str, other: str) -> None:
    first, second = load_words().wording[one], load_words().wording[other]  # type: ignore[index]
    assert not set(first.templates) & set(second.templates)
    assert not set(first.persons + first.firms) & set(second.persons + second.firms)
    assert not set(first.prompts) & set(second.prompts)
    assert not set(first.kinds.values()) & set(second.kinds.values())


def test_every_cue_word_is_met_in_every_split(by_split: dict[str, list[Task]]) -> None:
    cues = {c for s in load_words().skill.values() for group in s.cues.values() for c in group}
    for tasks in by_split.values():
        assert cues <= {w for t in tasks for text in texts(t) for w in re.findall(r"\w+", text)}


def test_each_cue_points_to_one_folder_of_one_skill() -> None:
    skills = load_words().skill.values()
    counts = Counter(cue for skill in skills for group in skill.cues.values() for cue in group)
    assert len(skills) >= 3
    assert min(len(skill.cues) for skill in skills) >= 5
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("split", SPLITS)
def test_the_best_constant_answer_is_poor(by_split: dict[str, list[Task]], split: str) -> None:
    for skill in load_words().skill:
        answers = Counter(_answer(t) for t in by_split[split] if t.metadata["skill"] == skill)
        assert max(answers.values()) / answers.total() <= 0.21


def test_no_prompt_and_no_file_holds_its_answer(by_split: dict[str, list[Task]]) -> None:
    for tasks in by_split.values():
        for task in tasks:
            assert _answer(task) not in " ".join(texts(task)).lower()


def test_prompts_hold_no_word_of_the_note_that_decides(by_split: dict[str, list[Task]]) -> None:
    for task in by_split["held_out"]:
        assert load_words().decide(task.prompt) is None


def test_skills_can_be_chosen() -> None:
    config = OfficeTasksConfig(skills=("reply",), count=5)
    assert {t.metadata["skill"] for t in OfficeTasks(config).tasks()} == {"reply"}
    assert len(OfficeTasks(config)) == 5


def test_unknown_skill_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"unknown skills \['flying'\].*reply.*topic.*unit"):
        OfficeTasksConfig(skills=("flying",))


def test_more_tasks_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than there are different tasks"):
        list(OfficeTasks(OfficeTasksConfig(skills=("reply",), count=10**6)).tasks())


def _answer(task: Task) -> str:
    decision = load_words().decide(task.files[NOTE])
    assert decision is not None
    return decision[2]
