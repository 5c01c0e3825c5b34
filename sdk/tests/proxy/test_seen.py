"""What is sent again is read once, and reading it again would give the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.openai_chat import OpenAIChat
from mixharness.proxy.dialects.seen import Seen, common

ITEMS = st.lists(st.sampled_from("abc"), max_size=6)


@given(st.lists(ITEMS, max_size=20))
def test_what_is_read_is_what_would_be_read_alone(bodies):
    seen = Seen()
    for items in bodies:
        assert seen.read(items, lambda _, item: item * 2) == [item * 2 for item in items]


@given(ITEMS, ITEMS)
def test_common_counts_equal_items_at_the_beginning(known, received):
    count = common(known, received)
    assert known[:count] == received[:count]
    assert known[count : count + 1] != received[count : count + 1] or count == len(known)


def test_only_new_items_are_read_even_when_conversations_take_turns():
    seen, read = Seen(), []

    def note(index, item):
        read.append((index, item))
        return item

    for items in (["a"], ["x"], ["a", "b"], ["x", "y"], ["a", "b", "c"], ["a", "c"]):
        assert seen.read(items, note) == items
    assert read == [(0, "a"), (0, "x"), (1, "b"), (1, "y"), (2, "c"), (1, "c")]


def test_a_dialect_takes_over_the_very_messages():
    dialect, seen = OpenAIChat(), Seen()
    turns = [{"role": "user", "content": f"turn {n}"} for n in range(4)]
    first = dialect.parse({"messages": turns[:3]}, seen)
    second = dialect.parse({"messages": [dict(turn) for turn in turns]}, seen)
    pairs = zip(first.messages, second.messages[:3], strict=True)
    assert all(before is after for before, after in pairs)
    assert second == dialect.parse({"messages": turns})


def test_what_cannot_be_read_is_refused_with_its_place_and_forgotten():
    dialect, seen = OpenAIChat(), Seen()
    good = [{"role": "user", "content": "hello"}]
    for _ in range(2):
        with pytest.raises(BadRequest, match=r"messages\[1\]\.role"):
            dialect.parse({"messages": [*good, {"role": "king"}]}, seen)
    assert len(dialect.parse({"messages": good}, seen).messages) == 1
