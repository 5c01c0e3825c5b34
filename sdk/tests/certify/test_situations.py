"""The situations that stand in the package."""

import pytest
from pydantic import ValidationError

from mixharness.certify.situations import Call, Fault, Situation, Turn, load_situations


def test_every_situation_is_there_once() -> None:
    names = [situation.name for situation in load_situations()]
    assert len(names) == len(set(names))
    assert set(names) >= {
        "two_tools",
        "parallel_tools",
        "odd_json",
        "empty_answer",
        "thinking_only",
        "long_sampling",
        "server_error",
        "rate_limit",
        "cut_stream",
        "no_streaming",
        "overflow",
        "compaction",
        "subagent",
        "changed_file",
        "thirty_turns",
    }


def test_thirty_turns_are_thirty() -> None:
    (thirty,) = (s for s in load_situations() if s.name == "thirty_turns")
    assert thirty.calls == len(thirty.in_order) == 30
    assert [turn.text for turn in thirty.in_order[-2:]] == ["", "Done."]


def test_what_is_said_on_a_cue_is_not_said_in_order() -> None:
    turns = (Turn(text="b", when="x"), Turn(text="a", times=2))
    situation = Situation(name="s", about="", turns=turns)
    assert [turn.text for turn in situation.in_order] == ["a", "a"]


@pytest.mark.parametrize("keys", [{}, {"shell": "ls", "agent": "do it"}])
def test_a_call_has_exactly_one_key(keys: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="exactly one of shell, shell_json, write and agent"):
        Call(**keys)


@pytest.mark.parametrize("keys", [{}, {"status": 500, "cut": 0.5}])
def test_a_fault_has_exactly_one_kind(keys: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="exactly one of status and cut"):
        Fault.model_validate(keys)
