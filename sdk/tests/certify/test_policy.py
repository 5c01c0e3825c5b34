"""What the scripted policy says to which prompt."""

import pytest

from mixharness.builtin.scripted import ScriptedConfig
from mixharness.certify.policy import Part, ScriptedPolicy
from mixharness.certify.situations import Call, Situation, Turn
from mixharness.engine import GenerateRequest, Sampling
from mixharness.proxy.chat import ChatMessage, Tool
from mixharness.proxy.renderer import ChatRenderer

TOOL = Tool(
    name="Bash",
    description="Run.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}},
)
TURNS = (
    Turn(text="again", when="a cue"),
    Turn(thinking="Hm.", text="I look.", calls=(Call(shell="ls"),), fails=True),
    Turn(text="done"),
)


def test_the_same_prompt_gets_the_same_turn_and_a_new_one_the_next() -> None:
    part = Part(Situation(name="s", about="", turns=TURNS, seen="omega"))
    said = [part.next_turn(ids, "alpha").text for ids in ((1,), (2,), (1,), (3,))]
    assert said == ["I look.", "done", "I look.", "done"]
    assert part.next_turn((4,), "here is a cue").text == "again"
    assert not part.seen
    part.next_turn((5,), "omega")
    assert part.seen


def test_when_tools_are_taken_away_it_says_what_needs_none() -> None:
    part = Part(Situation(name="s", about="", turns=(TURNS[1], TURNS[1], TURNS[2])))
    offered = [False, True, False]
    said = [part.next_turn((at,), "", tools=tools).text for at, tools in enumerate(offered)]
    assert said == ["I look.", "I look.", "done"]
    only = Part(Situation(name="s", about="", turns=TURNS[:2]))
    assert [only.next_turn((at,), "", tools=not at).text for at in (0, 1)] == ["I look."] * 2


@pytest.mark.anyio
async def test_it_fails_once_and_then_samples_what_its_template_would_have_it_say() -> None:
    part = Part(Situation(name="s", about="", turns=TURNS))
    policy = ScriptedPolicy(ScriptedConfig(turns=("",)), {"r": part}, long_s=0.0)
    await policy.start()
    renderer = ChatRenderer(policy.tokenizer)
    request = GenerateRequest(
        session_id="r",
        request_id="r/0",
        prompt_ids=tuple(renderer.render([ChatMessage(role="user", content="go")], [TOOL])),
        sampling=Sampling(temperature=1.0, max_tokens=999, stop_ids=renderer.stop_ids),
    )
    with pytest.raises(RuntimeError, match="wants the engine to fail"):
        await policy.generate(request)
    generation = await policy.generate(request)
    turn = renderer.parse(generation.ids)
    assert generation.finish_reason == "stop"
    assert (turn.reasoning, turn.text) == ("Hm.", "I look.")
    assert turn.tool_calls == (("Bash", '{"command": "ls"}'),)
