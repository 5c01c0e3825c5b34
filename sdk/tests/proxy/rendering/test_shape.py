import pytest

from mixharness.proxy.chat import ChatMessage, ToolCall
from mixharness.proxy.rendering.shape import Shape, find_shape

CALL = ToolCall(id="call12x3", name="t", arguments='{"a":  1}')
TURN = ChatMessage(role="assistant", reasoning="H", tool_calls=(CALL,))


def test_the_plain_shape_keeps_everything():
    assert Shape().message(TURN) == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "H",
        "tool_calls": [
            {
                "id": CALL.id,
                "type": "function",
                "function": {"name": "t", "arguments": '{"a":  1}'},
            }
        ],
    }


def test_other_shapes():
    shape = Shape(text_arguments=False, null_content=True, short_ids=True, reasoning_key="thinking")
    turn = shape.message(TURN)
    assert (turn["content"], turn["thinking"]) == (None, "H")
    (call,) = turn["tool_calls"]
    assert call["function"]["arguments"] == {"a": 1}
    result = shape.message(ChatMessage(role="tool", tool_call_id=CALL.id, name="t"))
    assert result["tool_call_id"] == call["id"]
    assert len(call["id"]) == 9
    assert result["name"] == "t"


@pytest.mark.parametrize("arguments", ["[1]", "no json"])
def test_arguments_that_are_no_object_are_kept_under_a_name(arguments):
    call = ToolCall(id="", name="t", arguments=arguments)
    message = ChatMessage(role="assistant", tool_calls=(call,))
    (shaped,) = Shape(text_arguments=False).message(message)["tool_calls"]
    assert list(shaped["function"]["arguments"]) == ["arguments"]


def test_the_first_shape_that_shows_a_call_whole_is_taken():
    def picky(messages):
        call, result = messages[1]["tool_calls"][0], messages[2]
        if messages[1]["content"] is not None or len(call["id"]) != 9:
            raise ValueError("not like this")
        arguments = "".join(
            f"{key}={value}" for key, value in call["function"]["arguments"].items()
        )
        return call["function"]["name"] + arguments + result["content"]

    assert find_shape(picky) == Shape(text_arguments=False, null_content=True, short_ids=True)
    assert find_shape(lambda messages: "nothing") == Shape()
