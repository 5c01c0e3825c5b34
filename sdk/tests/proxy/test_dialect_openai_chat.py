import httpx
import openai
import orjson
import pytest

from mixharness.proxy.chat import Answer, ChatMessage, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.openai_chat import OpenAIChat

DIALECT = OpenAIChat()
CALLS = tuple(ToolCall(id=f"c{n}", name="run", arguments=f'{{"a":  {n}}}') for n in range(2))
ANSWER = Answer(
    id="msg_1",
    text="Look.",
    reasoning="Hm.",
    tool_calls=CALLS,
    prompt_tokens=7,
    completion_tokens=3,
    reasoning_tokens=2,
)


def test_messages_of_every_role():
    request = DIALECT.parse(
        {
            "messages": [
                {"role": "developer", "content": "d"},
                {"role": "user", "content": [{"type": "text", "text": "u"}]},
                {"content": None, **DIALECT.render(ANSWER, "m", {})["choices"][0]["message"]},
                {"role": "tool", "tool_call_id": "c0", "content": "r"},
            ],
            "max_completion_tokens": 5,
            "tools": [{"type": "function", "function": {"name": "run", "parameters": {"a": 1}}}],
        }
    )
    assert request.messages == (
        ChatMessage(role="system", content="d"),
        ChatMessage(role="user", content="u"),
        ChatMessage(role="assistant", content="Look.", reasoning="Hm.", tool_calls=CALLS),
        ChatMessage(role="tool", content="r", tool_call_id="c0"),
    )
    assert request.max_tokens == 5
    assert request.tools[0].parameters == {"a": 1}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [], "n": 2}, "n: only one choice"),
        ({"messages": [{"role": "function"}]}, "messages[0].role: 'function'"),
        ({"messages": [], "tools": [{"function": {}}]}, "tools[0].function.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]: the policy reads text only, not 'image_url'",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
            "messages[0].tool_calls[0]: an object is wanted",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_path(body, message):
    with pytest.raises(BadRequest) as refused:
        DIALECT.parse(body)
    assert message in str(refused.value)


def test_the_vendors_client_reads_what_was_said():
    def handler(request):
        body = orjson.loads(request.content)
        if body.get("stream"):
            stream = b"".join(DIALECT.events(ANSWER, "m", body))
            headers = {"content-type": "text/event-stream"}
            return httpx.Response(200, content=DIALECT.keep_alive + stream, headers=headers)
        return httpx.Response(200, json=DIALECT.render(ANSWER, "m", {}))

    transport = httpx.MockTransport(handler)
    http_client = httpx.Client(transport=transport)
    with openai.OpenAI(api_key="k", base_url="http://p/v1", http_client=http_client) as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        whole = client.chat.completions.create(**ask).choices[0]
        options = {"include_usage": True}
        chunks = list(client.chat.completions.create(**ask, stream=True, stream_options=options))
    assert whole.finish_reason == "tool_calls"
    assert [c.function.arguments for c in whole.message.tool_calls] == ['{"a":  0}', '{"a":  1}']
    assert chunks[-1].usage.total_tokens == 10
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 2
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Look."
    streamed = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [c.index for c in streamed] == [0, 1]
    assert [c.function.arguments for c in streamed] == [c.arguments for c in CALLS]


def test_usage_only_when_asked_for():
    assert b"usage" not in b"".join(DIALECT.events(ANSWER, "m", {}))


def test_an_answer_cut_by_length():
    answer = Answer(id="m", text="x", finish_reason="length")
    assert DIALECT.render(answer, "m", {})["choices"][0]["finish_reason"] == "length"


def test_key_is_the_bearer_token():
    assert DIALECT.api_key({"authorization": "bearer a"}) == "a"
    assert DIALECT.api_key({"authorization": "Basic a"}) == ""
