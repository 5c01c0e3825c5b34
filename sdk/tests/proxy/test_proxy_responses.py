"""OpenAI Responses through the whole proxy, and what all dialects' routes have in common."""

import anthropic.types
import openai.types
import pytest

from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.proxy.app import ProxySettings

THOUGHT = "<think>\nFirst I look.\n</think>\n\n"
CALLS = (
    'Both.\n<tool_call>\n{"name": "box__run", "arguments": {"z":  1.0}}\n</tool_call>\n'
    '<tool_call>\n{"name": "patch", "arguments": {"input": "*** é"}}\n</tool_call>'
)
TOOLS = [
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
    {"type": "namespace", "name": "box", "tools": [{"type": "function", "name": "run"}]},
]
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}


async def ask(site, items, path="/v1/responses", **body):
    body = {"model": "policy", "instructions": "Be brief.", "tools": TOOLS, "input": items} | body
    return await site.client.post(site.session.base_url + path, json=body)


def results(output):
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
        for item in output
        if "call_id" in item
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_namespaced_and_custom_calls_bridge(open_site, path):
    async with open_site(THOUGHT + CALLS, "Done.") as site:
        output = (await ask(site, [USER], path)).json()["output"]
        assert [item["type"] for item in output] == [
            "reasoning",
            "message",
            "function_call",
            "custom_tool_call",
        ]
        assert (output[2]["namespace"], output[2]["arguments"]) == ("box", '{"z":  1.0}')
        last = (await ask(site, [USER, *output, *results(output)], path)).json()
        assert last["output"][0]["content"][0]["text"] == "Done."
        one, two = site.session.calls
        assert (two.fork, two.continues) == ("", (one.id,))
        assert two.parent_len == len(one.environment_ids) + len(one.sampled_ids)
        assert last["usage"]["input_tokens"] == len(site.prompt(two.id))


@pytest.mark.anyio
@pytest.mark.parametrize("kept", ["encrypted_content", "content"])
async def test_reasoning_comes_back_by_handle_or_as_text(open_site, kept):
    async with open_site(THOUGHT + "Hi.", "Done.") as site:
        reasoning, message = (await ask(site, [USER])).json()["output"]
        other = {"content": "encrypted_content", "encrypted_content": "content"}[kept]
        await ask(site, [USER, reasoning | {other: None}, message, USER])
        assert [call.fork for call in site.session.calls] == ["", ""]


@pytest.mark.anyio
async def test_overflow_and_engine_errors_have_their_shapes(open_site):
    engine = ScriptedEngine(ScriptedConfig(turns=("Hi.",), context=300))
    async with open_site(engine=engine) as site:
        response = await ask(site, "x" * 400, stream=True)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "input"


class BrokenEngine(ScriptedEngine):
    async def generate(self, request):
        raise RuntimeError("out of memory")


@pytest.mark.anyio
async def test_a_failed_stream_ends_with_response_failed(open_site):
    async with open_site(engine=BrokenEngine(ScriptedConfig(turns=("x",)))) as site:
        text = (await ask(site, [USER], stream=True)).text
        assert text.startswith("event: response.failed\n")
        assert "out of memory" in text


@pytest.mark.anyio
async def test_input_tokens_is_the_prompts_length(open_site):
    async with open_site("Hi.") as site:
        counted = (await ask(site, [USER], "/v1/responses/input_tokens")).json()
        await ask(site, [USER])
        expected = len(site.session.calls[0].environment_ids)
        assert counted == {"object": "response.input_tokens", "input_tokens": expected}


@pytest.mark.anyio
async def test_models_have_the_fields_of_both_vendors(open_site):
    async with open_site("Hi.") as site:
        for path in ("/v1/models", "/models"):
            listed = (await site.client.get(site.session.base_url + path)).json()
            one = (await site.client.get(f"{site.session.base_url}{path}/any/name")).json()
            assert (listed["data"][0]["id"], one["id"]) == ("policy", "any/name")
            for model in (*listed["data"], one):
                openai.types.Model.model_validate(model)
                anthropic.types.ModelInfo.model_validate(model)


@pytest.mark.anyio
async def test_what_is_not_served_is_refused_in_a_shape_all_programs_read(open_site):
    async with open_site("Hi.") as site:
        base = site.session.base_url
        assert (await site.client.head(base + "/v1")).status_code == 200
        for method, path, status in (("GET", "/v1/messages", 405), ("POST", "/v1/files", 404)):
            response = await site.client.request(method, base + path)
            assert response.status_code == status
            body = response.json()
            assert (body["type"], body["error"]["code"]) == ("error", None)
            assert path in body["error"]["message"]
        assert (await site.client.head(base + "/v1/messages")).status_code == 405


@pytest.mark.anyio
async def test_bodies_that_break_readers_are_refused(open_site):
    async with open_site("Hi.") as site:
        url = site.session.base_url + "/v1/responses"
        for body in (b'{"input": NaN}', b"[" * 100_000, b'{"a":' * 2000, b"\xff\xfe", b""):
            response = await site.client.post(url, content=body)
            assert response.status_code == 400
            assert response.json()["error"]["type"] == "invalid_request_error"
        tools = [{"type": "function", "name": "f", "parameters": {"a": _nested(300)}}]
        refused = await ask(site, [USER], tools=tools)
        assert refused.json()["error"]["message"].startswith("tools[0].parameters: recursion")


@pytest.mark.anyio
async def test_a_call_nested_beyond_reading_is_shown_as_text(open_site):
    turns = [
        f'<tool_call>\n{{"name": "run", "arguments": {{"a": {"[" * n}{"]" * n}}}}}\n</tool_call>'
        for n in (300, 1500)
    ]
    async with open_site(*turns, settings=ProxySettings(max_tokens=5000)) as site:
        for asked in ("One.", "Two."):
            (item,) = (await ask(site, asked)).json()["output"]
            assert item["content"][0]["text"].startswith("<tool_call>")
        sent = {"type": "function_call", "call_id": "c", "name": "f"}
        deep = sent | {"arguments": f'{{"a": {"[" * 600}{"]" * 600}}}'}
        result = {"type": "function_call_output", "call_id": "c", "output": ""}
        assert (await ask(site, [USER, deep, result])).status_code == 200


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value
