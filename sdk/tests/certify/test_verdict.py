"""What counts as kept to, and what does not."""

from dataclasses import replace

import pytest

from mixharness.certify.expectations import Expected
from mixharness.certify.front import Traffic
from mixharness.certify.situations import Fault, Situation, Turn
from mixharness.certify.verdict import Certificate, Played, judge, not_applicable
from mixharness.types import (
    CallRole,
    Delivery,
    Failure,
    FailureKind,
    GroupKey,
    HarnessExit,
    ModelCall,
    Rollout,
    Score,
)

SITUATION = Situation(name="two", about="", turns=(Turn(text="a"), Turn(text="b")))


def call(index: int, *, parent: ModelCall | None = None, **more: object) -> ModelCall:
    shared = parent.parent_len + len(parent.environment_ids) + 1 if parent else 0
    known: dict[str, object] = {
        "id": f"call_{index}",
        "rollout_id": "r",
        "index": index,
        "parent_call": parent.id if parent else None,
        "parent_len": shared,
        "environment_ids": (1, 2),
        "sampled_ids": (10 + index,),
        "logprobs": (-1.0,),
        "continues": (parent.id,) if parent else (),
        "delivery": Delivery.DELIVERED,
    }
    return ModelCall(**(known | more))  # type: ignore[arg-type]


FIRST = call(0)
SECOND = call(1, parent=FIRST)


def played(*calls: ModelCall, **more: object) -> Played:
    rollout = Rollout(
        id="r",
        key=GroupKey("two", "h"),
        calls=calls,
        score=Score(value=0.0),
        exit=HarnessExit(exit_code=0),
    )
    known: dict[str, object] = {
        "situation": SITUATION,
        "expected": Expected(),
        "rollout": rollout,
        "traffic": Traffic(fault=None),
        "seen": True,
        "silence_limit_s": 10.0,
    }
    return Played(**(known | more))  # type: ignore[arg-type]


def test_two_bridged_calls_are_ok() -> None:
    report = judge(played(FIRST, SECOND))
    assert report.ok, report.problems
    assert report.as_json() == {
        "name": "two",
        "ok": True,
        "calls": 2,
        "bridged": 1,
        "forks": [],
        "roles": {"main": 2},
        "max_silence_s": 0.0,
        "exit": "completed",
    }


FORKED = call(1, parent=FIRST, parent_len=0, fork="user_changed", fork_span="a -> b")


def test_an_unexpected_fork_fails_with_its_span() -> None:
    report = judge(played(FIRST, FORKED))
    assert report.problems == ("unexpected fork user_changed: a -> b",)
    assert report.as_json()["forks"] == [{"reason": "user_changed", "expected": False}]
    assert report.bridged == 0


def test_an_expected_fork_is_ok_and_must_happen() -> None:
    expected = Expected(forks=("user_changed",))
    report = judge(played(FIRST, FORKED, expected=expected))
    assert report.ok
    assert report.as_json()["forks"] == [{"reason": "user_changed", "expected": True}]
    assert judge(played(FIRST, SECOND, expected=expected)).problems == (
        "expected fork user_changed did not happen",
    )


def test_another_reason_than_expected_fails_twice() -> None:
    report = judge(played(FIRST, FORKED, expected=Expected(forks=("history_cut",))))
    assert report.problems == (
        "unexpected fork user_changed: a -> b",
        "expected fork history_cut did not happen",
    )


def test_a_dropped_answer_is_a_fork() -> None:
    again = call(2, parent=FIRST)
    last = call(3, parent=again)
    report = judge(played(FIRST, SECOND, again, last, expected=Expected(calls=4)))
    assert report.problems == ("unexpected fork superseded: the answer of call 1",)


def test_the_end_the_calls_and_the_roles_are_compared() -> None:
    helper = call(1, role=CallRole.SUBAGENT, agent="x")
    report = judge(played(FIRST, helper, expected=Expected(calls=3, exit="max_turns")))
    assert report.problems == (
        "ended as completed, not max_turns",
        "2 calls, not 3",
        "roles main, subagent, not main",
    )
    failure = Failure(kind=FailureKind.CONNECTION, detail="gone")
    given = played(FIRST, SECOND)
    failed = judge(replace(given, rollout=replace(given.rollout, failure=failure)))
    assert failed.exit == "connection"
    assert failed.problems == ("ended as connection, not completed: gone",)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"fault": Fault(status=500)}, {"traffic": Traffic(fault=Fault(status=500))}),
        ({"role": CallRole.COMPACTION}, {}),
        ({"seen": "omega"}, {"seen": False}),
    ],
)
def test_a_situation_that_did_not_come_about_fails(
    change: dict[str, object], more: dict[str, object]
) -> None:
    situation = SITUATION.model_copy(update=change)
    (problem,) = judge(played(FIRST, SECOND, situation=situation, **more)).problems
    assert problem.startswith("it did not happen: ")


def test_a_silent_stream_fails() -> None:
    traffic = Traffic(fault=None, max_silence_s=10.5)
    report = judge(played(FIRST, SECOND, traffic=traffic))
    assert report.problems == ("a stream was silent for 10.5 s",)


def test_one_bad_situation_spoils_the_certificate() -> None:
    good, bad = judge(played(FIRST, SECOND)), judge(played(FIRST))
    shown = not_applicable(SITUATION, "no tools")
    assert (shown.exit, shown.ok) == ("not applicable: no tools", True)
    assert Certificate(harness="h", version="1", situations=(good, shown)).ok
    assert not Certificate(harness="h", version="1", situations=(good, bad)).ok
