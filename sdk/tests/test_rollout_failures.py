from collections.abc import Sequence
from pathlib import Path

import pytest

from mixharness.errors import EngineError, HarnessError, SandboxError
from mixharness.rollout.failures import Ending, Evidence, attribute, endpoint_redirect
from mixharness.sandbox import Workspace
from mixharness.types import FailureKind, HarnessExit, ModelCall

CALL = ModelCall(
    id="call_0", rollout_id="r", index=0, environment_ids=(1,), sampled_ids=(2,), logprobs=(-0.1,)
)
EMPTY = ModelCall(
    id="call_0", rollout_id="r", index=0, environment_ids=(1,), sampled_ids=(), logprobs=()
)
FINE = Ending(exit=HarnessExit(exit_code=0))


def kind(
    ending: Ending,
    calls: Sequence[ModelCall] = (CALL,),
    notes: Sequence[str] = (),
    redirect: str | None = None,
    limit: str = "",
) -> FailureKind | None:
    evidence = Evidence(ending=ending, calls=calls, notes=notes, redirect=redirect, limit=limit)
    failure = attribute(evidence)
    return failure.kind if failure else None


def exited(code: int | None, reason: str = "completed") -> Ending:
    return Ending(exit=HarnessExit(exit_code=code, reason=reason))


def raised(error: Exception, cause: Exception | None = None) -> Ending:
    error.__cause__ = cause
    return Ending(error=error)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (FINE, None),
        (exited(None), None),  # killed after its result: a late exit
        (exited(1), FailureKind.NONZERO_EXIT),
        (exited(1, "error"), FailureKind.NONZERO_EXIT),
        (exited(None, "killed"), FailureKind.NONZERO_EXIT),
        (exited(1, "max_turns"), FailureKind.MAX_TURNS),
        (exited(1, "context_overflow"), FailureKind.CONTEXT_OVERFLOW),
        (exited(0, "invalid_tool_loop"), FailureKind.INVALID_TOOL_LOOP),
        (Ending(out_of=FailureKind.AGENT_TIMEOUT), FailureKind.AGENT_TIMEOUT),
        (Ending(out_of=FailureKind.WALL_CLOCK), FailureKind.WALL_CLOCK),
        (Ending(out_of=FailureKind.SETTLE_TIMEOUT), FailureKind.SETTLE_TIMEOUT),
        # The policy may have made its harness raise, but not the parts below.
        (raised(HarnessError("bad output"), ValueError()), FailureKind.NONZERO_EXIT),
        (raised(HarnessError("gone"), ConnectionError()), FailureKind.CONNECTION),
        (raised(SandboxError("init died")), FailureKind.CONNECTION),
        (raised(EngineError("dead")), FailureKind.CONNECTION),
    ],
)
def test_how_it_ended_after_calls(ending: Ending, expected: FailureKind | None) -> None:
    assert kind(ending) is expected


@pytest.mark.parametrize(
    "ending", [FINE, exited(1), raised(HarnessError("x")), Ending(out_of=FailureKind.AGENT_TIMEOUT)]
)
def test_no_call_at_all_is_a_start_failure(ending: Ending) -> None:
    assert kind(ending, calls=()) is FailureKind.HARNESS_START


def test_no_call_before_the_wall_clock_ran_out_is_the_wall_clock() -> None:
    assert kind(Ending(out_of=FailureKind.WALL_CLOCK), calls=()) is FailureKind.WALL_CLOCK


def test_a_first_prompt_that_does_not_fit_is_no_start_failure() -> None:
    assert kind(exited(1), calls=(), notes=["overflow"]) is FailureKind.CONTEXT_OVERFLOW


@pytest.mark.parametrize("note", ["max_turns", "max_tokens"])
@pytest.mark.parametrize(
    "ending",
    [
        exited(1),
        raised(HarnessError("400"), ConnectionError()),  # its client takes the refusal for a fault
        Ending(out_of=FailureKind.AGENT_TIMEOUT),  # it kept on asking
    ],
)
def test_a_used_up_budget_is_the_policys_however_the_program_takes_it(
    note: str, ending: Ending
) -> None:
    assert kind(ending, notes=[f"{note}: 9"]) is FailureKind(note)
    assert kind(FINE, notes=[f"{note}: 9"]) is None  # it had what it wanted


def test_an_answer_cut_off_by_the_token_budget_ends_the_rollout_even_if_taken_for_whole() -> None:
    assert kind(FINE, notes=["cut_off: call_3"]) is FailureKind.MAX_TOKENS


@pytest.mark.parametrize(
    "ending",
    [
        exited(137),
        raised(SandboxError("the container is gone")),
        Ending(out_of=FailureKind.WALL_CLOCK),
        Ending(out_of=FailureKind.SETTLE_TIMEOUT),
    ],
)
def test_a_limit_hit_in_the_sandbox_is_the_policys(ending: Ending) -> None:
    assert kind(ending, limit="memory_mb") is FailureKind.RESOURCE_LIMIT
    assert kind(FINE, limit="memory_mb") is None  # a command died, the program did not
    assert kind(ending, calls=(), limit="memory_mb") is not FailureKind.RESOURCE_LIMIT


def test_integrity_comes_first_and_engine_trouble_before_the_exit() -> None:
    notes = ["engine_error: boom", "foreign_call: wrong key"]
    assert kind(exited(1), notes=notes, redirect="x") is FailureKind.FOREIGN_CALL
    assert kind(exited(1), notes=notes[:1], redirect="x") is FailureKind.ENDPOINT_REDIRECT
    assert kind(exited(1), notes=notes[:1]) is FailureKind.ENGINE_ERROR


def test_calls_without_a_sampled_token_are_no_output() -> None:
    assert kind(FINE, calls=(EMPTY,)) is FailureKind.NO_OUTPUT


def test_the_detail_holds_the_end_of_the_output() -> None:
    ending = Ending(exit=HarnessExit(exit_code=3, output="x" * 5000 + "the reason\n"))
    evidence = Evidence(ending=ending, calls=(CALL,), notes=(), redirect=None)
    failure = attribute(evidence)
    assert failure is not None
    assert failure.detail.startswith("exit code 3: x")
    assert failure.detail.endswith("the reason")
    assert len(failure.detail) < 600


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "http://x"}}', True),
        ("sub/.claude/settings.local.json", '{"env": {"ANTHROPIC_BASE_URL": "x"}}', True),
        (".claude/settings.json", '{"env": {"EDITOR": "vi"}, "note": "BASE_URL"}', False),
        (".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": ', False),
        ("config/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "http://x"}}', False),
    ],
)
def test_a_settings_file_with_a_base_url_is_found(
    tmp_path: Path, name: str, text: str, found: bool
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert endpoint_redirect(Workspace(tmp_path)) == (name if found else None)
