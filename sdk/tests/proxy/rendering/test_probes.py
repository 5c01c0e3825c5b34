"""What holds for probe conversations holds for any: deltas say what the whole conversation says."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixharness.proxy.chat import ChatMessage, ToolCall
from mixharness.proxy.rendering.probes import PROBES, TOOLS, Probe

# Those without exceptions: nothing may differ but where tokens are cut.
STRICT = (
    "Qwen2.5-7B-Instruct",
    "Llama-3.1-8B-Instruct",
    "Mistral-Small-24B-Instruct-2501",
    "gemma-2-2b-it",
    "SmolLM2-135M-Instruct",
    "granite-4.0",
    "deepseek-v3",
    "llama-3",
)
WORDS = st.text(st.sampled_from("ab \n<é'{"), max_size=6).map("x{}x".format)
TEXTS = WORDS | st.sampled_from(["<|im_end|>", "x </s> y", "<tool_call>", "[INST]"])


@st.composite
def rounds(draw):
    """Turns with what comes after each; the results of its calls come first."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        calls = tuple(
            ToolCall(id=f"call{number}x{k}", name="run", arguments=json.dumps({"a": draw(TEXTS)}))
            for k in range(draw(st.integers(0, 2)))
        )
        turn = ChatMessage(role="assistant", content=draw(TEXTS), tool_calls=calls)
        after = [
            ChatMessage(role="tool", tool_call_id=call.id, name=call.name, content=draw(TEXTS))
            for call in calls
        ]
        roles = draw(st.lists(st.sampled_from(["user", "system"]), max_size=2))
        after += [ChatMessage(role=role, content=draw(TEXTS)) for role in roles]
        if not after:
            after = [ChatMessage(role="user", content="And?")]
        found.append((turn, tuple(after)))
    return tuple(found)


@pytest.mark.parametrize("name", STRICT)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rounds=rounds(), system=TEXTS, ask=TEXTS)
def test_deltas_say_what_the_whole_conversation_says(renderer_of, name, rounds, system, ask):
    renderer = renderer_of(name)
    assert renderer.exceptions == frozenset()
    base = [ChatMessage(role="system", content=system), ChatMessage(role="user", content=ask)]
    pieces = renderer.pieces(base, Probe("any", rounds), TOOLS)
    assert renderer.decode(pieces.deltas) == renderer.decode(pieces.whole)


def test_results_only_probes_are_those_of_a_tool_loop():
    assert {probe.name for probe in PROBES if probe.results_only} == {
        "two calls in a row",
        "reasoning",
    }
