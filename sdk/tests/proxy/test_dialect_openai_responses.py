from itertools import chain

import httpx
import openai
import orjson
import pytest
from openai.types.responses import Response

from mixharness.proxy.chat import Answer, ChatMessage, ToolCall
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.dialects.openai_responses import OpenAIResponses

DIALECT = OpenAIResponses()
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
TOOLS = [
    {"type": "function", "name": "run", "description": "Run it.", "parameters": {"a": 1}},
    {"type": "custom", "name": "patch", "description": "Edit.", "format": GRAMMAR},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Helpers.",
        "tools": [
            {"type": "function", "name": "run", "parameters": None},
            {"type": "custom", "name": "say"},
        ],
    },
]
BODY = {"tools": TOOLS, "input": "Go.", "model": "m"}
CALLS = (
    ToolCall(id="c0", name="run", arguments='{"a":  1}'),
    ToolCall(id="c1", name="patch", arguments='{ "input" : "*** é" }'),
    ToolCall(id="c2", name="agents__run", arguments="{}"),
    ToolCall(id="c3", name="agents__say", arguments='{"text": "no input"}'),
    ToolCall(id="c4", name="agents__fly", arguments="{}"),
)
ANSWER = Answer(
    id="msg_1",
    text="Look.",
    reasoning="Hm é.",
    tool_calls=CALLS,
    prompt_tokens=7,
    completion_tokens=3,
    reasoning_tokens=2,
)


def output(answer=ANSWER):
    return DIALECT.render(answer, "m", BODY)["output"]


def parse(*items, **body):
    return DIALECT.parse({"input": list(items), **body}).messages


def events(answer=ANSWER):
    stream = b"".join(DIALECT.events(answer, "m", BODY)).decode()
    return [orjson.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]


def test_tools_are_read_by_flat_names():
    tools = DIALECT.parse(BODY).tools
    assert [tool.name for tool in tools] == ["run", "patch", "agents__run", "agents__say"]
    assert tools[0].parameters == {"a": 1}
    assert tools[1].description == ("Edit.\n\nThe input follows this lark grammar:\nstart: /.+/")
    assert tools[1].parameters["required"] == ["input"]
    assert (tools[2].description, tools[2].parameters) == ("Helpers.", {})


def test_calls_of_one_answer_are_one_message_though_results_stand_between_them():
    def call(call_id):
        return {"type": "function_call", "call_id": call_id, "name": "run", "arguments": "{}"}

    def result(call_id):
        return {"type": "function_call_output", "call_id": call_id, "output": call_id}

    for ids, turns in (
        (["call3x0", "call3x1", "call4x0"], [2, 1]),
        (["c0", "c1"], [1, 1]),  # ids of somebody else's
    ):
        messages = parse(*(make(i) for i in ids for make in (call, result)))
        assert [len(m.tool_calls) for m in messages if m.role == "assistant"] == turns
        assert [m.content for m in messages if m.role == "tool"] == ids
        assert messages[turns[0]].role == "tool"


def test_calls_become_the_items_their_tools_want():
    calls = output()[2:]
    assert [(c["type"], c["name"], c.get("namespace")) for c in calls] == [
        ("function_call", "run", None),
        ("custom_tool_call", "patch", None),
        ("function_call", "run", "agents"),
        ("custom_tool_call", "say", "agents"),
        ("function_call", "agents__fly", None),
    ]
    assert calls[0]["arguments"] == '{"a":  1}'
    assert [calls[1]["input"], calls[3]["input"]] == ["*** é", '{"text": "no input"}']
    assert [c["call_id"] for c in calls] == ["c0", "c1", "c2", "c3", "c4"]
    assert len({item["id"] for item in output()}) == 7


def test_what_was_shown_is_read_back_as_one_message():
    results = [
        {"type": "function_call_output", "call_id": "c0", "output": "r"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "s"}],
        },
    ]
    answer, *tools = parse(*output(), *results)
    assert (answer.role, answer.content, answer.reasoning) == ("assistant", "Look.", "Hm é.")
    assert [(c.id, c.name) for c in answer.tool_calls] == [(c.id, c.name) for c in CALLS]
    assert [orjson.loads(c.arguments) for c in answer.tool_calls] == [
        orjson.loads(c.arguments) for c in CALLS
    ]
    assert tools == [
        ChatMessage(role="tool", content="r", tool_call_id="c0"),
        ChatMessage(role="tool", content="s", tool_call_id="c1"),
    ]


@pytest.mark.parametrize("handle", ["gAAAA-of-another-server", "mh1.00.eA==", "mh1.é", "mh1", ""])
def test_reasoning_is_found_by_its_handle_alone_and_no_other(handle):
    item = output()[0]
    bare = {"type": "reasoning", "id": "rs", "summary": [], "content": None}
    (found,) = parse(bare | {"encrypted_content": item["encrypted_content"]})
    assert found == ChatMessage(role="assistant", reasoning="Hm é.")
    readable = {"summary": [{"type": "summary_text", "text": "short"}]}
    assert parse(bare | {"encrypted_content": handle} | readable)[0].reasoning == "short"
    assert parse(bare | {"encrypted_content": handle}) == ()


def test_neighbouring_answers_stay_apart():
    one, two = output(Answer(id="m1", text="one")), output(Answer(id="m2", text="two"))
    thought = output(Answer(id="m3", reasoning="hm", text="three"))
    found = parse(*one, *two, *thought)
    assert [(m.reasoning, m.content) for m in found] == [("", "one"), ("", "two"), ("hm", "three")]


def test_messages_of_every_role():
    request = DIALECT.parse(
        {
            "instructions": "s",
            "input": [
                {"role": "developer", "content": "d"},
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "u"}],
                },
                {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            ],
            "max_output_tokens": 5,
            "stream": True,
        }
    )
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "s"),
        ("system", "d"),
        ("user", "u"),
        ("assistant", "a"),
    ]
    assert (request.max_tokens, request.stream) == (5, True)
    assert DIALECT.parse({"input": "Go."}).messages == (ChatMessage(role="user", content="Go."),)


def image(kind="message", **fields):
    part = [{"type": "input_image", "image_url": "data:"}]
    return {
        "input": [{"type": kind, "call_id": "c", "role": "user", **dict.fromkeys(fields, part)}]
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (image(content=1), "input[0].content[0]: the policy reads text only, not 'input_image'"),
        (image("function_call_output", output=1), "input[0].output[0]: the policy reads text only"),
        ({"input": [{"type": "item_reference"}]}, "input[0]: items of type 'item_reference'"),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role: 'tool' is none of"),
        ({"input": [{"role": "user"}]}, "input[0].content: a string"),
        ({"input": {}}, "input: a list is wanted, not an object"),
        ({"input": "x", "previous_response_id": "r"}, "previous_response_id: nothing is stored"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]: no server runs tools"),
        ({"input": "x", "tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name: another tool is called"),
        (
            {"input": "x", "tools": [TOOLS[0] | {"name": "agents__run"}, TOOLS[2]]},
            "tools[1].tools[0].name: another tool is called 'agents__run' too",
        ),
        ({"input": "x", "stream": "yes"}, "stream: true or false is wanted"),
        (
            {"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]},
            "input[0].call_id: a string is wanted",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_path(body, message):
    with pytest.raises(BadRequest) as refused:
        DIALECT.parse(body)
    assert message in str(refused.value)


def test_events_come_in_order_and_end_with_the_whole_response():
    found = events()
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    kinds = [event["type"].removeprefix("response.") for event in found]
    text = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    inner = [
        *[[kind.format(stem) for kind in text] for stem in ("reasoning_text", "output_text")],
        *[
            [f"{stem}.delta", f"{stem}.done"]
            for stem in (
                "function_call_arguments",
                "custom_tool_call_input",
                "function_call_arguments",
                "custom_tool_call_input",
                "function_call_arguments",
            )
        ],
    ]
    items = [["output_item.added", *each, "output_item.done"] for each in inner]
    assert kinds == ["created", "in_progress", *chain(*items), "completed"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == output() == found[-1]["response"]["output"]
    assert found[-1]["response"] == DIALECT.render(ANSWER, "m", BODY)


def test_the_vendors_client_reads_what_was_said():
    def handler(request):
        if orjson.loads(request.content).get("stream"):
            stream = b"".join(DIALECT.events(ANSWER, "m", BODY))
            headers = {"content-type": "text/event-stream"}
            return httpx.Response(200, content=DIALECT.keep_alive + stream, headers=headers)
        return httpx.Response(200, json=DIALECT.render(ANSWER, "m", BODY))

    http_client = httpx.Client(transport=httpx.MockTransport(handler))
    with openai.OpenAI(api_key="k", base_url="http://p/v1", http_client=http_client) as client:
        whole = client.responses.create(model="m", input="Go.")
        with client.responses.stream(model="m", input="Go.") as stream:
            streamed = stream.get_final_response()
    assert (whole.output_text, whole.status) == ("Look.", "completed")
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (7, 3)
    assert whole.usage.output_tokens_details.reasoning_tokens == 2
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output[2].arguments == '{"a":  1}'
    Response.model_validate(DIALECT.render(ANSWER, "m", BODY))


def test_an_answer_cut_by_length_is_incomplete():
    answer = Answer(id="m", text="x", finish_reason="length")
    *_, last = events(answer)
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_an_empty_answer_has_no_items():
    assert [event["type"] for event in events(Answer(id="m"))] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]


def test_errors():
    status, body = DIALECT.overflow(10, 9)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    failed = orjson.loads(DIALECT.stream_error("boom").split(b"data: ")[1])
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "boom"}
    assert DIALECT.api_key({"authorization": "bearer a"}) == "a"
