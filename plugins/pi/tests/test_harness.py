"""Rollouts of the real program, in each of its three dialects."""

import json

import pytest

from mixharness.types import FailureKind

pytestmark = [pytest.mark.anyio, pytest.mark.pi]

APIS = ("openai-completions", "openai-responses", "anthropic-messages")
FILES = {"a.txt": "alpha\n"}
COPY = '<tool_call>\n{"name": "bash", "arguments": {"command":  "cp a.txt b.txt"}}\n</tool_call>'
READ = '<tool_call>\n{"name": "read", "arguments": {"path": "b.txt"}}\n</tool_call>'
THOUGHT = "<think>\nI copy it.\n</think>\n\n"


@pytest.mark.parametrize("api", APIS)
async def test_a_task_is_done_and_every_call_goes_on_from_the_one_before(bench, api):
    turns = (f"{THOUGHT}Copying.\n{COPY}", f"{THOUGHT}{READ}", f"{THOUGHT}Copied.")
    rollout = await bench.run(*turns, files=FILES, api=api)
    assert rollout.failure is None
    assert (rollout.exit.reason, rollout.exit.final_message) == ("completed", "Copied.")
    assert bench.file(rollout, "b.txt") == "alpha\n"
    assert [call.parent_call for call in rollout.calls] == [None, "call_0", "call_1"]
    assert {call.fork for call in rollout.calls} == {""}
    assert rollout.program_version == "1.6.0"


@pytest.mark.parametrize("api", APIS)
async def test_prompts_differ_by_the_workspace_only(bench, api):
    prompts = []
    for sample in (0, 1):
        prompt = bench.prompt(await bench.run("Done.", api=api, sample=sample))
        place = prompt.partition("<cwd>\n")[2].partition("\n")[0]
        assert place.endswith("/workspace")
        prompts.append(prompt.replace(place, "PLACE"))
    assert prompts[0] == prompts[1]
    assert prompts[0].endswith("Copy a.txt to b.txt.<|im_end|>\n<|im_start|>assistant\n")


async def test_what_is_asked_of_the_policy(bench):
    rollout = await bench.run("Done.", tools=("bash", "ls"))
    (request,) = bench.requests(rollout)
    assert [tool["function"]["name"] for tool in request["tools"]] == ["bash", "ls"]
    assert [m["role"] for m in request["messages"]] == ["system", "user"]
    assert request["messages"][1]["content"] == [{"type": "text", "text": "Copy a.txt to b.txt."}]


@pytest.mark.parametrize("api", APIS)
async def test_a_prompt_that_does_not_fit_ends_the_run(bench, api):
    rollout = await bench.run(
        COPY, context=4000, files={"a.txt": "x"}, api=api, system_prompt="y" * 9000
    )
    assert rollout.failure.kind is FailureKind.CONTEXT_OVERFLOW
    assert rollout.exit.reason == "context_overflow"


async def test_files_of_the_workspace_do_not_configure_the_program(bench):
    settings = json.dumps({"defaultProvider": "other", "defaultTools": []})
    files = {".pi/settings.json": settings, ".pi/SYSTEM.md": "Evil.", "AGENTS.md": "Evil."}
    rollout = await bench.run("Done.", files=files)
    assert rollout.exit.reason == "completed"
    assert "Evil." not in bench.prompt(rollout)
