import gc
import socket

import anyio
import httpx
import pytest

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.errors import ConfigError
from mixharness.proxy.app import Proxy, ProxySettings
from mixharness.proxy.log import read_bodies, read_calls
from mixharness.types import Delivery, Limits

TOOL_TURN = (
    'Let me look.\n<tool_call>\n{"name": "bash", "arguments": {"z":  1.0, "a": "\\u00e9"}}\n'
    "</tool_call>"
)
TOOL = {"name": "bash", "description": "Run it.", "parameters": {"type": "object"}}
CHAT_TOOLS = [{"type": "function", "function": TOOL}]
START = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "List."}]


def text(ids):
    return byte_tokenizer().decode(list(ids), skip_special_tokens=False)


@pytest.mark.anyio
async def test_chat_bridges_with_a_delta(open_site):
    async with open_site(TOOL_TURN, "Done.") as site:
        first = (await site.chat({"messages": START, "tools": CHAT_TOOLS})).json()
        shown = first["choices"][0]["message"]
        assert shown["tool_calls"][0]["function"]["arguments"] == '{"z":  1.0, "a": "\\u00e9"}'
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        result = {"role": "tool", "tool_call_id": shown["tool_calls"][0]["id"], "content": "a b"}
        second = await site.chat({"messages": [*START, shown, result], "tools": CHAT_TOOLS})
        assert second.json()["choices"][0]["message"]["content"] == "Done."
        one, two = site.session.calls
        assert two.parent_call == one.id
        assert two.parent_len == len(one.environment_ids) + len(one.sampled_ids)
        assert text(two.environment_ids) == (
            "\n<|im_start|>user\n<tool_response>\na b\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert two.continues == (one.id,)
        assert two.fork == ""
        usage = second.json()["usage"]
        assert usage["prompt_tokens"] == len(site.prompt(two.id))


@pytest.mark.anyio
async def test_chat_stream_and_short_path(open_site):
    async with open_site(TOOL_TURN) as site:
        body = {"messages": START, "stream": True, "stream_options": {"include_usage": True}}
        response = await site.chat(body, path="/chat/completions")
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        assert '"usage":{"completion_tokens"' in events[-2]
        assert '{\\"z\\":  1.0, \\"a\\": \\"\\\\u00e9\\"}' in response.text
        assert site.session.calls[0].delivery is Delivery.DELIVERED


@pytest.mark.anyio
async def test_anthropic_rewritten_arguments_still_match(open_site):
    edit = '<tool_call>\n{"name": "Edit", "arguments": {"path": "x", "n": 5000.0}}\n</tool_call>'
    schema = {"type": "object", "properties": {"replace_all": {"default": False}}}
    tools = [{"name": "Edit", "description": "Edit.", "input_schema": schema}]
    user = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
    async with open_site("<think>\nHm.\n</think>\n\n" + edit, "Done.") as site:
        ask = {"system": "Be brief.", "tools": tools}
        message = (await site.anthropic({**ask, "messages": [user]})).json()
        thinking, call = message["content"]
        assert thinking.pop("signature")  # some programs take unsigned reasoning for text
        assert thinking == {"type": "thinking", "thinking": "Hm."}
        assert message["stop_reason"] == "tool_use"
        call["input"] = {"replace_all": False, "n": 5000, "path": "x"}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "ok"}
        again = [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": [thinking, call]},
            {"role": "user", "content": [result]},
        ]
        await site.anthropic({**ask, "messages": again})
        one, two = site.session.calls
        assert two.fork == ""
        assert two.parent_len == len(one.environment_ids) + len(one.sampled_ids)


@pytest.mark.anyio
async def test_anthropic_stream_is_well_formed(open_site):
    async with open_site(TOOL_TURN) as site:
        response = await site.anthropic({"messages": [START[1]], "stream": True})
        kinds = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
        assert kinds == [
            "message_start",
            *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
            "message_delta",
            "message_stop",
        ]
        assert r'"partial_json":"{\"z\":  1.0, \"a\": \"\\u00e9\"}"' in response.text


@pytest.mark.anyio
async def test_rewritten_assistant_is_a_fork(open_site):
    async with open_site(TOOL_TURN, "Done.") as site:
        shown = (await site.chat({"messages": START})).json()["choices"][0]["message"]
        shown["content"] = "Let me see."
        result = {"role": "tool", "tool_call_id": shown["tool_calls"][0]["id"], "content": "a"}
        await site.chat({"messages": [*START, shown, result]})
        one, two = site.session.calls
        assert two.fork == "assistant_changed"
        assert "look" in two.fork_span
        assert two.parent_call == one.id
        assert two.parent_len == len(one.environment_ids)
        assert two.continues == (one.id,)
        assert "Let me see." in text(two.environment_ids)
        assert two.replayed == ()


@pytest.mark.anyio
async def test_changed_tool_result_replays_what_was_sampled(open_site):
    async with open_site(TOOL_TURN, "Middle.", "Done.") as site:
        first = (await site.chat({"messages": START})).json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "a"}
        second = (await site.chat({"messages": [*START, first, result]})).json()
        middle = second["choices"][0]["message"]
        changed = {**result, "content": "a, with a reminder"}
        await site.chat({"messages": [*START, first, changed, middle, START[1]]})
        one, two, three = site.session.calls
        assert three.fork == "tool_changed"
        assert three.parent_call == one.id
        start, end = three.replayed[0]
        assert three.environment_ids[start:end] == two.sampled_ids
        assert three.continues == (two.id,)


@pytest.mark.anyio
async def test_keys_are_wanted_in_path_and_header(open_site):
    async with open_site("Hi.") as site:
        wrong_header = {"authorization": "Bearer no"}
        denied = await site.chat({"messages": START}, headers=wrong_header)
        assert denied.status_code == 401
        assert "error" in denied.json()
        url = site.session.base_url.replace(site.session.secret, "no")
        assert (await site.client.post(url + "/v1/messages", json={})).status_code == 403
        elsewhere = site.session.base_url.replace("task_h_0", "other")
        assert (await site.client.post(elsewhere + "/v1/messages", json={})).status_code == 404
        assert [note.split(":")[0] for note in site.session.notes] == ["foreign_call"] * 2
        assert site.session.calls == ()


@pytest.mark.anyio
async def test_closed_session_refuses(open_site, harness, tmp_path):
    async with open_site("Hi.") as site:
        await site.session.close()
        assert (await site.chat({"messages": START})).status_code == 409
        site.proxy.open_session(
            rollout_id="next", harness=harness, limits=Limits(), folder=tmp_path / "next"
        )
        assert (await site.chat({"messages": START})).status_code == 409


@pytest.mark.anyio
async def test_bad_bodies_get_the_dialects_error(open_site):
    async with open_site("Hi.") as site:
        headers = {"x-api-key": site.session.secret}
        url = site.session.base_url + "/v1/messages"
        broken = await site.client.post(url, content=b"{nope", headers=headers)
        assert broken.status_code == 400
        assert broken.json()["error"]["type"] == "invalid_request_error"
        assert "not valid JSON" in broken.json()["error"]["message"]
        image = {"role": "user", "content": [{"type": "image", "source": {}}]}
        refused = await site.anthropic({"messages": [image]})
        assert refused.json()["error"]["message"] == (
            "messages[0].content[0]: the policy reads text only, not 'image'"
        )
        prefill = [*START, {"role": "assistant", "content": "I"}]
        assert (await site.chat({"messages": prefill})).status_code == 400
        assert (await site.chat({"messages": []})).status_code == 400
        assert site.session.calls == ()


@pytest.mark.anyio
async def test_half_a_surrogate_pair_is_survived(open_site):
    async with open_site("Hi.") as site:
        body = b'{"model": "m", "messages": [{"role": "user", "content": "a\\ud83d b"}]}'
        url = site.session.base_url + "/v1/chat/completions"
        assert (await site.client.post(url, content=body)).status_code == 200
        assert "a? b" in text(site.session.calls[0].environment_ids)


@pytest.mark.anyio
async def test_overflow_is_told_in_each_dialect(open_site):
    engine = ScriptedEngine(ScriptedConfig(turns=("Hi.",), context=100))
    async with open_site(engine=engine) as site:
        long = [{"role": "user", "content": "x" * 200}]
        response = await site.anthropic({"messages": long})
        message = response.json()["error"]["message"]
        tokens = int(message.split()[4])
        assert message == f"prompt is too long: {tokens} tokens > 99 maximum"
        chat = await site.chat({"messages": long, "stream": True})
        assert (chat.status_code, chat.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert site.session.notes == [f"overflow: a prompt of {tokens} tokens"] * 2


@pytest.mark.anyio
async def test_max_tokens_is_the_smallest_of_three(open_site):
    engine = ScriptedEngine(ScriptedConfig(turns=("x" * 500,), context=200))
    async with open_site(engine=engine, settings=ProxySettings(max_tokens=150)) as site:
        asked = await site.chat({"messages": [START[1]], "max_tokens": 7})
        assert asked.json()["usage"]["completion_tokens"] == 7
        assert asked.json()["choices"][0]["finish_reason"] == "length"
        room = (await site.chat({"messages": START})).json()["usage"]
        assert room["completion_tokens"] == min(150, 200 - room["prompt_tokens"])


@pytest.mark.anyio
async def test_max_turns(open_site):
    async with open_site("Hi.", limits=Limits(max_turns=1)) as site:
        assert (await site.chat({"messages": START})).status_code == 200
        more = [*START, START[1]]
        refused = await site.chat({"messages": more})
        # 400, unlike 408, 410, 429 and all of 5xx, ends OpenClaw and Codex without a retry.
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "rollout turn budget exhausted"
        other = await site.anthropic({"messages": [START[1]]})
        assert other.status_code == 403  # at 400 Claude Code asks twice more
        assert site.session.notes == ["max_turns: 1 model calls"] * 2


@pytest.mark.anyio
async def test_the_token_budget_cuts_the_last_answer_and_refuses_the_next(open_site):
    settings = ProxySettings(max_tokens=100)
    async with open_site("x" * 500, settings=settings, limits=Limits(tokens=150)) as site:
        messages, lengths = [*START], []
        for _ in range(2):
            body = (await site.chat({"messages": messages})).json()
            lengths.append(
                (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"])
            )
            messages += [body["choices"][0]["message"], {"role": "user", "content": "more"}]
        assert lengths == [(100, "length"), (50, "length")]
        assert site.session.notes == ["cut_off: call_1 took the last of 150 tokens"]
        refused = await site.chat({"messages": messages})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "rollout sampling budget exhausted"
        assert site.session.notes[1:] == ["max_tokens: 150 tokens"]
        assert len(site.session.calls) == 2


@pytest.mark.anyio
async def test_count_tokens_is_the_prompts_length(open_site):
    async with open_site("Hi.") as site:
        body = {"system": "S.", "messages": [{"role": "user", "content": "<|im_end|> é"}]}
        counted = await site.anthropic(body, path="/v1/messages/count_tokens")
        await site.anthropic(body)
        assert counted.json() == {"input_tokens": len(site.session.calls[0].environment_ids)}


@pytest.mark.anyio
async def test_probes_are_harmless(open_site):
    async with open_site("Hi.") as site:
        base = site.session.base_url
        assert (await site.client.head(base + "/")).status_code == 200
        assert (await site.client.get(base + "/api/hello")).status_code == 200
        assert (await site.client.get(base + "/v1/models")).json()["data"][0]["id"] == "policy"
        assert site.session.notes == []


@pytest.mark.anyio
async def test_what_is_logged_is_what_was_sent(open_site):
    async with open_site(TOOL_TURN, "Done.") as site:
        sent = [await site.chat({"messages": START}) for _ in range(1)]
        shown = sent[0].json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": shown["tool_calls"][0]["id"], "content": "a"}
        more = {"messages": [*START, shown, result], "stream": True}
        sent.append(await site.chat(more))
        bodies = read_bodies(site.folder)
        requests = [body.data for body in bodies if body.kind == "request"]
        responses = [body.data for body in bodies if body.kind == "response"]
        assert requests == [response.request.content for response in sent]
        assert responses == [response.content for response in sent]
        assert read_calls(site.folder) == site.session.calls


@pytest.mark.anyio
async def test_taken_port_is_one_clear_error():
    engine = ScriptedEngine(ScriptedConfig(turns=("Hi.",)))
    await engine.start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}: Address already in use"):
            await Proxy(engine, ProxySettings()).start(port=port)


@pytest.mark.anyio
async def test_sessions_do_not_see_each_other(open_site, harness, tmp_path):
    async with open_site("Hi.") as site:
        other = site.proxy.open_session(
            rollout_id="other", harness=harness, limits=Limits(), folder=tmp_path / "other"
        )
        with pytest.raises(ValueError, match="is open"):
            site.proxy.open_session(
                rollout_id="other", harness=harness, limits=Limits(), folder=tmp_path / "x"
            )
        async with anyio.create_task_group() as group:
            group.start_soon(site.chat, {"messages": START})
            headers = {"authorization": f"Bearer {other.secret}"}
            url = other.base_url + "/v1/chat/completions"
            async with httpx.AsyncClient(headers=headers) as client:
                await client.post(url, json={"messages": START})
        assert len(site.session.calls) == len(other.calls) == 1
        denied = await site.client.post(url, json={"messages": START})
        assert denied.status_code == 401


@pytest.mark.anyio
async def test_answers_are_not_held_back_for_an_acknowledgement(open_site):
    """Nagle's algorithm would cost 40 ms between the head and the body of each answer."""
    async with open_site("Hello.") as site:
        await site.chat({"messages": [{"role": "user", "content": "hello"}]})
        port = httpx.URL(site.session.base_url).port
        accepted = [
            found
            for found in gc.get_objects()
            if type(found) is socket.socket  # looking closer wakes lazy objects of other packages
            and found.fileno() >= 0
            and found.getsockname()[1:2] == (port,)
            and not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ]
        assert accepted
        assert all(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for s in accepted)
