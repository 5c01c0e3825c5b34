"""Rollouts as ATIF trajectories: which steps there are, and that the tokens are the record's."""

import json
from dataclasses import replace

import pytest
from atif import Trajectory

from mixharness.proxy.chat import ChatMessage, ChatRequest, Tool, ToolCall
from mixharness.proxy.transcript import Exchange
from mixharness.tree.atif import to_atif
from mixharness.tree.prune import Pruning
from mixharness.tree.tokens import prompt_ids
from mixharness.types import (
    CallRole,
    Delivery,
    GroupKey,
    ModelCall,
    Rollout,
    Score,
    VersionSpan,
)

TOOLS = (Tool(name="run", description="Run it.", parameters={"type": "object"}),)
SYSTEM = ChatMessage(role="system", content="Be brief.")
PROMPT = "Count the files of this folder."


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def result(call_id: str, text: str) -> ChatMessage:
    return ChatMessage(role="tool", content=text, tool_call_id=call_id)


def answer(text: str, *calls: ToolCall) -> ChatMessage:
    return ChatMessage(role="assistant", content=text, tool_calls=calls)


def call(index: int, environment: tuple[int, ...], sampled: tuple[int, ...], **fields: object):
    return ModelCall(
        id=f"c{index}",
        rollout_id="r",
        index=index,
        environment_ids=environment,
        sampled_ids=sampled,
        logprobs=tuple(-0.1 * (place + 1) for place in range(len(sampled))),
        versions=(VersionSpan(3, 0, len(sampled)),),
        temperature=0.7,
        **{"delivery": Delivery.DELIVERED, **fields},
    )


def after(parent: ModelCall) -> dict[str, object]:
    end = parent.parent_len + len(parent.environment_ids) + len(parent.sampled_ids)
    return {"parent_call": parent.id, "parent_len": end, "continues": (parent.id,)}


@pytest.fixture
def rollout() -> tuple[Rollout, dict[str, Exchange]]:
    """A tool call that starts a sub-agent, its result, and an answer that was sampled twice."""
    delegate = ToolCall(id="t0", name="task", arguments=json.dumps({"prompt": PROMPT}))
    first = call(0, (1, 2, 3), (4, 5))
    side = call(1, (1, 9), (6,), role=CallRole.SUBAGENT, agent="helper")
    lost = call(2, (7,), (8, 8), **{**after(first), "delivery": Delivery.CANCELLED})
    again = call(3, (7,), (8, 9, 9), **after(first))
    asked = (SYSTEM, user("How many?"), answer("I ask.", delegate), result("t0", "Two."))
    said = {
        "c0": (ChatRequest(messages=asked[:2], tools=TOOLS, model="policy"), asked[2]),
        "c1": (ChatRequest(messages=(SYSTEM, user(f"Note.\n{PROMPT}"))), answer("Two.")),
        "c2": (ChatRequest(messages=asked), answer("It is")),
        "c3": (ChatRequest(messages=asked), answer("Two it is.")),
    }
    whole = Rollout(
        id="r",
        key=GroupKey("task", "agentloop"),
        calls=(first, side, lost, again),
        score=Score(value=1.0),
        program_version="2.1",
    )
    return whole, {name: Exchange(request=r, answer=a) for name, (r, a) in said.items()}


def agent_steps(trajectory: Trajectory):
    every = [trajectory, *(trajectory.subagent_trajectories or [])]
    return [step for one in every for step in one.steps if step.metrics is not None]


def test_the_agent_is_the_program_that_ran(rollout):
    whole, exchanges = rollout
    agent = to_atif(whole, exchanges).agent
    assert (agent.name, agent.version) == ("agentloop", "2.1")
    without = replace(whole, program_version="")
    assert to_atif(without, exchanges).agent.version == "unknown"


def test_ids_and_logprobs_are_those_of_the_record(rollout):
    whole, exchanges = rollout
    text = to_atif(whole, exchanges).model_dump_json(exclude_none=True)
    steps = {
        step.extra["call_id"]: step for step in agent_steps(Trajectory.model_validate_json(text))
    }
    assert steps.keys() == {call.id for call in whole.calls}
    for each in whole.calls:
        metrics = steps[each.id].metrics
        assert metrics.prompt_token_ids == list(prompt_ids(whole.calls, each.id))
        assert metrics.completion_token_ids == list(each.sampled_ids)
        assert metrics.logprobs == list(each.logprobs)
        assert metrics.prompt_tokens == len(metrics.prompt_token_ids)
        assert metrics.extra["temperature"] == 0.7
        assert metrics.extra["versions"] == [
            {"version": 3, "start": 0, "end": len(each.sampled_ids)}
        ]


def test_steps_tell_the_conversation_once(rollout):
    trajectory = to_atif(*rollout)
    assert [(step.source, step.message) for step in trajectory.steps] == [
        ("system", "Be brief."),
        ("user", "How many?"),
        ("agent", "I ask."),
        ("agent", "It is"),
        ("agent", "Two it is."),
    ]
    delegate = trajectory.steps[2]
    assert delegate.tool_calls[0].arguments == {"prompt": PROMPT}
    (observed,) = delegate.observation.results
    assert (observed.source_call_id, observed.content) == ("t0", "Two.")
    assert trajectory.agent.tool_definitions[0]["function"]["name"] == "run"
    assert trajectory.extra["score"] == 1.0


def test_a_subagent_is_embedded_and_linked_to_the_call_that_began_it(rollout):
    trajectory = to_atif(*rollout)
    (side,) = trajectory.subagent_trajectories
    assert [step.source for step in side.steps] == ["system", "user", "agent"]
    (observed,) = trajectory.steps[2].observation.results
    assert observed.subagent_trajectory_ref[0].trajectory_id == side.trajectory_id == "r/helper"


def test_what_is_trained_and_why_the_rest_is_not(rollout):
    def verdicts(pruning: Pruning):
        steps = agent_steps(to_atif(*rollout, pruning))
        return {s.extra["call_id"]: (s.extra["credit"], s.extra["reason"]) for s in steps}

    assert verdicts(Pruning()) == {
        "c0": (1.0, None),
        "c1": (0.0, "role_subagent"),
        "c2": (0.0, "cancelled"),
        "c3": (1.0, None),
    }
    assert verdicts(Pruning(branch_credit=0.5))["c1"] == (0.5, None)


def test_a_rewritten_history_does_not_repeat_the_conversation(rollout):
    whole, exchanges = rollout
    changed = (SYSTEM, user("How many files?"), *exchanges["c3"].request.messages[2:])
    more = (*changed, answer("Two it is."), answer("A note of the program's own."), user("Sure?"))
    last = call(4, (1, 2, 2, 5), (3,), continues=("c3",), fork="user_changed")
    whole = replace(whole, calls=(*whole.calls, last))
    exchanges["c4"] = Exchange(request=ChatRequest(messages=more), answer=answer("Yes."))

    steps = to_atif(whole, exchanges).steps[5:]
    assert [(s.source, s.message, s.llm_call_count) for s in steps] == [
        ("agent", "A note of the program's own.", 0),
        ("user", "Sure?", None),
        ("agent", "Yes.", 1),
    ]
    assert steps[2].extra["fork"] == "user_changed"


def test_side_calls_of_the_main_agent_stand_apart(rollout):
    whole, exchanges = rollout
    aside = call(4, (1,), (2,), role=CallRole.AUXILIARY)
    whole = replace(whole, calls=(*whole.calls, aside))
    exchanges["c4"] = Exchange(
        request=ChatRequest(messages=(user("A title, please."),)), answer=answer("Counting")
    )
    trajectory = to_atif(whole, exchanges)
    assert len(trajectory.steps) == 5
    names = [one.trajectory_id for one in trajectory.subagent_trajectories]
    assert names == ["r/helper", "r/-aside"]


def test_a_rollout_without_calls_is_a_trajectory_without_steps():
    trajectory = to_atif(Rollout(id="r", key=GroupKey("t", "h"), calls=()), {})
    assert trajectory.steps == []
    assert trajectory.extra["score"] is None
