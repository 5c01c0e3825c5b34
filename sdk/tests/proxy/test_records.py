import json

import pytest

from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.engine import EngineTokenizer

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
GO = [{"role": "user", "content": "Go."}]
BROKEN = '<tool_call>\n{"name": "run", "arguments": {"a": }\n</tool_call>'
GOOD = '<tool_call>\n{"name": "run", "arguments": {"a": 1}}\n</tool_call>'


class Following(ScriptedEngine):
    """A scripted engine whose template is followed to the letter."""

    @property
    def tokenizer(self):
        own = super().tokenizer
        return EngineTokenizer(
            tokenizer=own.tokenizer, renderer="qwen3", context=own.context, rerender=True
        )


def answered(message, content="no such tool"):
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": content}
        for call in message.get("tool_calls", ())
    ]
    return [message, *results]


@pytest.mark.anyio
async def test_a_malformed_call_is_text_by_default(open_site):
    async with open_site(f"Look. {BROKEN}") as site:
        message = (await site.chat({"messages": GO, "tools": TOOLS})).json()["choices"][0][
            "message"
        ]
        assert BROKEN in message["content"]
        assert "tool_calls" not in message
        assert site.session.calls[0].parse_status == "invalid"


@pytest.mark.anyio
async def test_a_repair_is_answered_and_the_policy_reads_what_it_sampled(open_site, harness):
    type(harness).repair_malformed_calls = True
    try:
        async with open_site(f"Look. {GOOD}{BROKEN}", "Done.") as site:
            body = {"messages": GO, "tools": TOOLS}
            message = (await site.chat(body)).json()["choices"][0]["message"]
            good, repair = message["tool_calls"]
            assert message["content"] == "Look."
            assert good["function"] == {"name": "run", "arguments": '{"a": 1}'}
            assert repair["function"]["name"] == "invalid_tool_call"
            assert json.loads(repair["function"]["arguments"]) == {"text": BROKEN}
            await site.chat({**body, "messages": [*GO, *answered(message)]})
            first, second = site.session.calls
            assert (first.parse_status, second.parse_status) == ("repaired", "ok")
            assert (second.parent_call, second.fork) == (first.id, "")
            prompt = site.engine.tokenizer.tokenizer.decode(
                site.prompt(second.id), skip_special_tokens=False
            )
            assert BROKEN in prompt
            assert "invalid_tool_call" not in prompt
            assert prompt.count("no such tool") == 2
    finally:
        type(harness).repair_malformed_calls = False


@pytest.mark.anyio
async def test_only_what_a_program_could_answer_is_repaired(open_site, harness):
    type(harness).repair_malformed_calls = True
    try:
        async with open_site(BROKEN, BROKEN) as site:
            await site.chat({"messages": GO})
            await site.chat({"messages": GO, "tools": TOOLS, "max_tokens": 40})
            assert [call.parse_status for call in site.session.calls] == ["invalid", "invalid"]
    finally:
        type(harness).repair_malformed_calls = False


@pytest.mark.anyio
async def test_a_template_followed_to_the_letter_forks_where_it_changes_history(open_site):
    turns = (f"<think>\nHm\n</think>\n\n{GOOD}", "<think>\nSo\n</think>\n\nDone.", "Bye.")
    engine = Following(ScriptedConfig(turns=turns))
    async with open_site(engine=engine) as site:
        messages = list(GO)
        for more in ([], [], [{"role": "user", "content": "And?"}]):
            messages += more
            said = (await site.chat({"messages": messages, "tools": TOOLS})).json()
            messages += answered(said["choices"][0]["message"], "ok")
        one, two, three = site.session.calls
        assert (two.parent_call, two.fork) == (one.id, "")
        assert (three.parent_call, three.fork) == (None, "rerendered")
        assert three.continues == (two.id,)
        prompt = engine.tokenizer.tokenizer.decode(three.environment_ids, skip_special_tokens=False)
        assert "Done." in prompt
        assert "Hm" not in prompt
        assert three.replayed == ()
