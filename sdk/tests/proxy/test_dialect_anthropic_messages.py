import anthropic
import httpx2
import orjson
import pytest

from mixharness.proxy.chat import Answer, ChatMessage, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.anthropic_messages import AnthropicMessages

DIALECT = AnthropicMessages()
CALL = ToolCall(id="toolu_1", name="Bash", arguments='{"command":  "ls"}')
ANSWER = Answer(
    id="msg_1",
    text="Look.",
    reasoning="Hm.",
    tool_calls=(CALL,),
    prompt_tokens=7,
    completion_tokens=3,
)


def parse(*messages, **body):
    return DIALECT.parse({"messages": list(messages), **body})


def test_blocks_become_messages_in_their_order():
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
    }
    failed = {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True}
    note = {"type": "text", "text": "note", "cache_control": {"type": "ephemeral"}}
    request = parse(
        {"role": "user", "content": [note, result, failed, note, note]},
        {"role": "system", "content": "late"},
        system=[{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}],
        max_tokens=5,
        stream=True,
    )
    assert request.messages == (
        ChatMessage(role="system", content="s1\n\ns2"),
        ChatMessage(role="user", content="note"),
        ChatMessage(role="tool", content="one\n\ntwo", tool_call_id="a"),
        ChatMessage(role="tool", content="Error: no", tool_call_id="b"),
        ChatMessage(role="user", content="note\n\nnote"),
        ChatMessage(role="system", content="late"),
    )
    assert (request.max_tokens, request.stream) == (5, True)


def test_string_and_list_are_the_same():
    listed = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    assert parse(listed) == parse({"role": "user", "content": "a"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [{"role": "robot"}]}, "messages[0].role: 'robot'"),
        ({"messages": "hi"}, "messages: a list is wanted, not a string"),
        ({"messages": [], "max_tokens": 0}, "max_tokens: a positive whole number"),
        ({"messages": [], "tools": [{"type": "web_search_1", "name": "x"}]}, "tools[0]: no server"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]},
            "messages[0].content[0]: the policy can have said no block",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 3}]}]},
            "messages[0].content[0].content: a string or a list",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_path(body, message):
    with pytest.raises(BadRequest) as refused:
        DIALECT.parse(body)
    assert message in str(refused.value)


def sdk_client(handler):
    transport = httpx2.MockTransport(handler)
    return anthropic.Anthropic(
        api_key="k", base_url="http://proxy", http_client=httpx2.Client(transport=transport)
    )


def test_the_vendors_client_reads_what_was_said():
    def handler(request):
        body = orjson.loads(request.content)
        if body.get("stream"):
            stream = b"".join(DIALECT.events(ANSWER, "m", body))
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, content=DIALECT.keep_alive + stream, headers=headers)
        return httpx2.Response(200, json=DIALECT.render(ANSWER, "m", {}))

    with sdk_client(handler) as client:
        ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        whole = client.messages.create(**ask)
        with client.messages.stream(**ask) as stream:
            streamed = stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert [b.to_dict() for b in streamed.content] == [b.to_dict() for b in whole.content]
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (7, 3)


def test_what_was_shown_is_read_back_as_the_same_message():
    content = DIALECT.render(ANSWER, "m", {})["content"]
    (message,) = parse({"role": "assistant", "content": content}).messages
    assert (message.content, message.reasoning) == ("Look.", "Hm.")
    assert message.tool_calls[0].arguments == '{"command":"ls"}'


@pytest.mark.parametrize(("reason", "expected"), [("stop", "end_turn"), ("length", "max_tokens")])
def test_stop_reason(reason, expected):
    answer = Answer(id="m", text="x", finish_reason=reason)
    assert DIALECT.render(answer, "m", {})["stop_reason"] == expected


def test_key_from_either_header():
    assert DIALECT.api_key({"x-api-key": "a"}) == "a"
    assert DIALECT.api_key({"authorization": "Bearer b"}) == "b"
    assert DIALECT.api_key({}) == ""
