"""Rule 2: a sampled span is never tokenised again as an assistant message."""

import pytest

from mixharness.proxy.chat import ChatMessage
from mixharness.proxy.renderer import ChatRenderer
from mixharness.tree.tokens import prompt_ids

pytestmark = pytest.mark.anyio

# What a harness is shown loses the outer blanks, so its text would give other ids.
ODD_CALL = (
    '  I  look. \n<tool_call>\n{"name": "bash", "arguments": {"command":  "ls" }}\n</tool_call>'
)
ODD_TEXT = "   It is  Ada. \n\n"


def holds(ids, span):
    return any(ids[at : at + len(span)] == span for at in range(len(ids) - len(span) + 1))


async def test_later_prompts_hold_the_sampled_ids_continued_or_replayed(bench):
    engine = bench.engine(ODD_CALL, "In vain.", ODD_TEXT, "Done.")
    rollout = await bench.run(engine, harness=bench.rewriter())
    first, _, second, last = rollout.calls
    assert [call.fork for call in rollout.calls] == ["", "", "", "tool_changed"]
    prompt = prompt_ids(rollout.calls, last.id)
    assert prompt == engine.asked[-1].prompt_ids
    assert prompt[: first.parent_len + len(first.environment_ids)] == engine.asked[0].prompt_ids
    for call in (first, second):
        assert holds(prompt, call.sampled_ids), f"{call.id} was tokenised again"
    start, end = last.replayed[0]
    assert last.environment_ids[start:end] == second.sampled_ids

    shown = ChatMessage(role="assistant", content=ODD_TEXT.strip())
    assert not holds(second.sampled_ids, tuple(ChatRenderer(engine.tokenizer).turn_ids(shown)))
