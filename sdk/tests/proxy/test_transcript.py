"""Recorded bodies read back, in every dialect that is served, streamed and whole."""

import pytest

from mixharness.proxy.bodies import Body
from mixharness.proxy.chat import ChatMessage, ToolCall
from mixharness.proxy.log import read_bodies
from mixharness.proxy.transcript import read_exchanges

pytestmark = pytest.mark.anyio

TURN = (
    "<think>\nHm\n</think>\n\nI look.\n<tool_call>\n"
    '{"name": "run", "arguments": {"command": "ls -l", "n": 1}}\n</tool_call>\n<tool_call>\n'
    '{"name": "run", "arguments": {}}\n</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}


def anthropic(messages, **options):
    tools = [{"name": "run", "description": "Run it.", "input_schema": SCHEMA}]
    return {"messages": messages, "tools": tools, "system": "Be brief.", **options}


def chat(messages, **options):
    function = {"name": "run", "description": "Run it.", "parameters": SCHEMA}
    system = {"role": "system", "content": "Be brief."}
    tools = [{"type": "function", "function": function}]
    return {"messages": [system, *messages], "tools": tools, **options}


def responses(messages, **options):
    tools = [{"type": "function", "name": "run", "description": "Run it.", "parameters": SCHEMA}]
    return {"input": messages, "tools": tools, "instructions": "Be brief.", **options}


BUILD = {"anthropic": anthropic, "chat": chat, "responses": responses}


async def post(site, dialect, body):
    if dialect == "responses":
        return await site.chat(body, path="/v1/responses")
    return await getattr(site, dialect)(body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", BUILD)
async def test_an_exchange_is_what_was_asked_and_shown(open_site, dialect, stream):
    async with open_site(TURN) as site:
        question = {"role": "user", "content": "List the files — all."}
        body = BUILD[dialect]([question], stream=stream)
        assert (await post(site, dialect, body)).status_code == 200
    exchanges = read_exchanges(read_bodies(site.folder))
    exchange = exchanges["call_0"]
    assert exchange.request.messages == (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="List the files — all."),
    )
    assert [tool.name for tool in exchange.request.tools] == ["run"]
    answer = exchange.answer
    assert (answer.content.strip(), answer.reasoning.strip()) == ("I look.", "Hm")
    first, second = answer.tool_calls
    assert isinstance(first, ToolCall)
    assert first.id != second.id
    assert first.name == "run"
    assert first.arguments.replace(" ", "") == '{"command":"ls-l","n":1}'
    assert second.arguments == "{}"


@pytest.mark.parametrize("dialect", BUILD)
async def test_an_empty_answer(open_site, dialect):
    async with open_site("") as site:
        body = BUILD[dialect]([{"role": "user", "content": "hello"}])
        assert (await post(site, dialect, body)).status_code == 200
    answer = read_exchanges(read_bodies(site.folder))["call_0"].answer
    assert answer == ChatMessage(role="assistant")


def test_a_response_of_no_dialect_is_refused():
    bodies = [
        Body(call="c", kind="request", agent="", data=b"{}"),
        Body(call="c", kind="response", agent="", data=b'{"type": "surprise"}'),
    ]
    with pytest.raises(ValueError, match="a response of no known dialect"):
        read_exchanges(bodies)


def test_a_request_without_a_response_is_no_exchange():
    assert read_exchanges([Body(call="c", kind="request", agent="", data=b"{}")]) == {}
