import pytest

from mixharness.tree.prune import Pruned, Pruning, prune
from mixharness.types import CallRole, Delivery, FailureKind, ModelCall

DELIVERED, PENDING, UNKNOWN = Delivery.DELIVERED, Delivery.PENDING, Delivery.UNKNOWN


def call(index: int, name: str, *continues: str, **fields: object) -> ModelCall:
    defaults = {
        "environment_ids": (1,),
        "sampled_ids": (2,),
        "logprobs": (-0.1,),
        "delivery": DELIVERED,
        "started_s": float(index),
    }
    return ModelCall(
        id=name, rollout_id="r", index=index, continues=continues, **{**defaults, **fields}
    )


def history(*specs: tuple[object, ...]) -> list[ModelCall]:
    """Each spec: name, then the calls it continues, then optionally a dict of fields."""
    calls = []
    for index, spec in enumerate(specs):
        fields = spec[-1] if isinstance(spec[-1], dict) else {}
        names = [part for part in spec if isinstance(part, str)]
        calls.append(call(index, *names, **fields))
    return calls


def verdict(pruned: Pruned) -> tuple[str, dict[str, str]]:
    return "".join(sorted(pruned.kept)), dict(pruned.reasons)


def test_an_unbroken_chain_is_kept_whole():
    assert verdict(prune(history(("a",), ("b", "a"), ("c", "b")))) == ("abc", {})


def test_a_retry_supersedes_the_answer_nobody_went_on_from():
    calls = history(("a",), ("b", "a"), ("B", "a"), ("c", "B"))
    assert verdict(prune(calls)) == ("Bac", {"b": "superseded"})


def test_a_retry_of_the_first_request_supersedes_it():
    calls = history(("a",), ("A",), ("b", "A"))
    assert verdict(prune(calls)) == ("Ab", {"a": "superseded"})


def test_a_repeated_request_counts_as_a_sibling_even_when_it_holds_nothing_first():
    repeated = {"parent_call": "a", "parent_len": 2}
    calls = history(("a",), ("b", "a", repeated), ("B", repeated), ("c", "B"))
    assert prune(calls).reasons == {"b": "superseded"}


def test_an_answer_that_was_never_delivered_is_dead():
    calls = history(("a",), ("b", "a", {"delivery": PENDING}))
    assert verdict(prune(calls)) == ("a", {"b": "undelivered"})


def test_unknown_delivery_counts_as_delivered_exactly_when_continued():
    unknown = {"delivery": UNKNOWN}
    calls = history(("a", unknown), ("b", "a", unknown))
    assert verdict(prune(calls)) == ("a", {"b": "undelivered"})


def test_a_cancelled_call_is_never_trained_even_when_continued():
    calls = history(("a", {"delivery": Delivery.CANCELLED}), ("b", "a"))
    assert verdict(prune(calls)) == ("b", {"a": "cancelled"})


def test_of_two_live_chains_the_one_with_most_calls_stays():
    calls = history(("a",), ("b", "a"), ("c", "b"), ("d", "c"), ("B", "a"), ("C", "B"))
    assert verdict(prune(calls)) == ("abcd", {"B": "losing_chain", "C": "losing_chain"})


def test_of_two_equally_long_chains_the_latest_delivered_stays():
    calls = history(("a",), ("b", "a"), ("B", "a"))
    assert verdict(prune(calls)) == ("Ba", {"b": "losing_chain"})
    late = history(("a",), ("b", "a", {"duration_s": 9.0}), ("B", "a"))
    assert verdict(prune(late)) == ("ab", {"B": "losing_chain"})


def test_each_compaction_epoch_keeps_its_own_chain():
    compaction = {"role": CallRole.COMPACTION}
    calls = history(("a",), ("b", "a"), ("s", "b", compaction), ("c",), ("d", "c"))
    assert verdict(prune(calls)) == ("abcd", {"s": "role_compaction"})


def test_a_compaction_that_changed_nothing_starts_no_epoch():
    compaction = {"role": CallRole.COMPACTION}
    calls = history(("a",), ("s", "a", compaction), ("b", "a"), ("B", "a"), ("c", "B"))
    assert prune(calls).reasons == {"s": "role_compaction", "b": "superseded"}


def test_a_rewritten_history_is_one_chain():
    """c's request dropped a's tokens, so it shares none with them; it still continues both."""
    calls = history(("a",), ("b", {"fork": "rewritten"}), ("c", "a", "b"))
    assert verdict(prune(calls)) == ("abc", {})


def test_interleaved_subagents_are_untrained_and_the_parent_is_unbroken():
    sub, other = ({"role": CallRole.SUBAGENT, "agent": name} for name in ("x", "y"))
    calls = history(
        ("a",), ("u", sub), ("v", other), ("U", "u", sub), ("V", "v", other), ("b", "a")
    )
    assert verdict(prune(calls)) == ("ab", dict.fromkeys("uUvV", "role_subagent"))


@pytest.mark.parametrize("credit", [1.0, 0.25])
def test_branch_credit_is_for_live_calls_only(credit: float):
    sub = {"role": CallRole.SUBAGENT, "agent": "x"}
    calls = history(("a",), ("u", sub), ("v", "u", {**sub, "delivery": PENDING}), ("b", "a"))
    pruned = prune(calls, Pruning(branch_credit=credit))
    assert pruned.credits == {"a": 1.0, "u": credit, "b": 1.0}
    assert pruned.reasons == {"v": "undelivered"}


def test_retries_within_a_subagent_compete_and_parallel_ones_do_not():
    """u and p are two sub-agents of one name; V is asked again after v was delivered."""
    sub = {"role": CallRole.SUBAGENT, "agent": "x"}
    calls = history(
        ("a",), ("u", sub), ("p", sub), ("v", "u", sub), ("V", "u", sub), ("q", "p", sub)
    )
    pruned = prune(calls, Pruning(branch_credit=1.0))
    assert verdict(pruned) == ("Vapqu", {"v": "losing_chain"})


def test_compaction_and_auxiliary_calls_share_the_credit():
    compaction = {"role": CallRole.COMPACTION}
    title = {"role": CallRole.AUXILIARY, "agent": "t"}
    pruned = prune(
        history(("t", title), ("a",), ("s", "a", compaction)), Pruning(branch_credit=0.5)
    )
    assert pruned.credits == {"t": 0.5, "a": 1.0, "s": 0.5}


@pytest.mark.parametrize(("retries", "dropped"), [(16, False), (17, True)])
def test_more_than_sixteen_superseded_siblings_drop_the_rollout(retries: int, dropped: bool):
    siblings = [(f"r{number}", "a") for number in range(retries)]
    pruned = prune(history(("a",), *siblings, ("b", "a"), ("c", "b")))
    assert (pruned.failure is not None) == dropped
    assert pruned.kept == (frozenset() if dropped else {"a", "b", "c"})
    if pruned.failure:
        assert pruned.failure.kind is FailureKind.EXCESSIVE_FORKS
        assert set(pruned.reasons.values()) == {"excessive_forks"}


def test_the_run_file_sets_how_many_siblings_are_too_many():
    calls = history(("a",), ("r", "a"), ("b", "a"), ("c", "b"))
    assert prune(calls, Pruning(max_regenerations=1)).failure is None
    dropped = prune(calls, Pruning(max_regenerations=0))
    assert dropped.failure is not None
    assert dropped.failure.detail == "1 superseded siblings, at most 0 are allowed"


def test_many_honest_subagents_are_no_forks():
    subs = [(f"s{n}", {"role": CallRole.SUBAGENT, "agent": f"s{n}"}) for n in range(40)]
    assert prune(history(("a",), *subs, ("b", "a"))).failure is None


def test_a_call_that_refers_to_a_later_one_is_refused():
    with pytest.raises(ValueError, match="call a refers to b, which is no earlier call"):
        prune(history(("a", "b"), ("b",)))
