"""What the main agent was told and said, from calls and recorded bodies."""

from typing import Any

import orjson

from mixharness.proxy.bodies import Body
from mixharness.tree.conversation import read_conversation
from mixharness.types import CallRole, Delivery, ModelCall

SYSTEM = {"role": "system", "content": "Be brief."}


def call(name: str, *continues: str, **fields: Any) -> ModelCall:
    values: dict[str, Any] = {
        "environment_ids": (1,),
        "sampled_ids": (2,),
        "logprobs": (-0.1,),
        "delivery": Delivery.DELIVERED,
    }
    return ModelCall(
        id=name, rollout_id="r", index=ord(name), continues=continues, **values | fields
    )


def bodies(name: str, asked: list[Any], answer: str) -> list[Body]:
    request = {"messages": [SYSTEM, *asked]}
    response = {
        "object": "chat.completion",
        "choices": [{"message": {"role": "assistant", "content": answer}}],
    }
    return [
        Body(call=name, kind="request", agent="", data=orjson.dumps(request)),
        Body(call=name, kind="response", agent="", data=orjson.dumps(response)),
    ]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def texts(calls: list[ModelCall], recorded: list[Body]) -> list[str]:
    return [message.content for message in read_conversation(calls, recorded)]


def test_the_last_call_holds_all_before_it() -> None:
    recorded = [
        *bodies("a", [user("1")], "one"),
        *bodies("b", [user("1"), said("one"), user("2")], "two"),
    ]
    assert texts([call("a"), call("b", "a")], recorded) == ["Be brief.", "1", "one", "2", "two"]


def test_a_history_that_was_compacted_is_followed_by_its_new_beginning() -> None:
    calls = [call("a"), call("b", "a", role=CallRole.COMPACTION), call("c", "b")]
    recorded = [
        *bodies("a", [user("1")], "one"),
        *bodies("b", [user("1"), said("one"), user("sum up")], "summary"),
        *bodies("c", [user("so far: summary"), user("2")], "two"),
    ]
    assert texts(calls, recorded) == ["Be brief.", "1", "one", "so far: summary", "2", "two"]


def test_side_calls_and_answers_that_were_sampled_anew_are_left_out() -> None:
    calls = [
        call("a"),
        call("b"),
        call("c", role=CallRole.AUXILIARY),
        call("d", role=CallRole.SUBAGENT, agent="x"),
        call("e", "b"),
    ]
    recorded = [
        *bodies("a", [user("1")], "wrong"),
        *bodies("b", [user("1")], "one"),
        *bodies("c", [user("title?")], "title"),
        *bodies("d", [user("help")], "helped"),
        *bodies("e", [user("1"), said("one"), user("2")], "two"),
    ]
    assert texts(calls, recorded) == ["Be brief.", "1", "one", "2", "two"]


def test_nothing_said() -> None:
    assert read_conversation([], []) == ()
