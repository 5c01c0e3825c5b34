"""From a plan and what was sampled to the record and the answer. No I/O, no state."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, replace

import orjson
import xxhash

from mixharness.engine import Generation
from mixharness.proxy.admission import Plan
from mixharness.proxy.chat import Answer, ChatMessage, ToolCall, mint_call_id
from mixharness.proxy.rendering.turn import ParsedTurn
from mixharness.types import Delivery, ModelCall

_NO_TOOL = "invalid_tool_call"


def make_answer(plan: Plan, turn: ParsedTurn, generation: Generation) -> Answer:
    """Return what a harness is shown. Ids are counted, so that none of them is random."""
    calls = tuple(
        ToolCall(id=mint_call_id(plan.index, k), name=name, arguments=arguments)
        for k, (name, arguments) in enumerate(turn.tool_calls)
    )
    return Answer(
        id=f"msg_{plan.index}",
        text=turn.text,
        reasoning=turn.reasoning,
        tool_calls=calls,
        finish_reason=generation.finish_reason,
        prompt_tokens=len(plan.prompt.ids),
        completion_tokens=len(generation.ids),
        reasoning_tokens=turn.reasoning_tokens,
    )


def repaired(plan: Plan, turn: ParsedTurn, generation: Generation) -> ParsedTurn:
    """Return a turn in which malformed calls are valid calls of a tool that does not exist (1.11).

    The program answers those with an error, and its loop goes on. A call that was cut off by its
    length stays text, as does one in a request without tools.
    """
    names = {tool.name for tool in plan.request.tools}
    if not turn.malformed or not names or generation.finish_reason != "stop":
        return turn
    name = _NO_TOOL
    while name in names:  # a real tool must not run
        name += "_"
    calls = tuple((name, orjson.dumps({"text": text}).decode()) for text in turn.malformed)
    return replace(
        turn, text=turn.prose, tool_calls=turn.tool_calls + calls, malformed=(), status="repaired"
    )


def shown_message(answer: Answer) -> ChatMessage:
    """Return an answer as the message that a harness sends back."""
    return ChatMessage(
        role="assistant",
        content=answer.text,
        reasoning=answer.reasoning,
        tool_calls=answer.tool_calls,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a plan."""

    generation: Generation
    parse_status: str = "ok"
    held_s: float = 0.0
    delivery: Delivery = Delivery.PENDING


NOTHING_SAMPLED = Outcome(
    # An engine hands over nothing when its await is cancelled.
    generation=Generation(ids=(), logprobs=(), versions=(), finish_reason="cancelled"),
    delivery=Delivery.CANCELLED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What all records of a rollout have in common."""

    rollout_id: str
    temperature: float
    renderer_hash: str
    began: float
    """On the monotonic clock."""

    def record(self, plan: Plan, outcome: Outcome) -> ModelCall:
        """Return the record of a call."""
        resolved, generation = plan.resolved, outcome.generation
        return ModelCall(
            id=plan.call_id,
            rollout_id=self.rollout_id,
            index=plan.index,
            agent=plan.identity.agent,
            role=plan.identity.role,
            parent_call=resolved.parent.id if resolved.parent else None,
            parent_len=plan.prompt.shared,
            environment_ids=plan.prompt.environment_ids,
            replayed=plan.prompt.replayed,
            sampled_ids=generation.ids,
            logprobs=generation.logprobs,
            versions=generation.versions,
            temperature=self.temperature,
            finish_reason=generation.finish_reason,
            parse_status=outcome.parse_status,
            continues=resolved.continues,
            fork=resolved.fork,
            fork_span=resolved.fork_span,
            delivery=outcome.delivery,
            started_s=plan.started - self.began,
            duration_s=time.monotonic() - plan.started,
            held_s=outcome.held_s,
            rules=plan.rules,
            renderer_hash=self.renderer_hash,
            checksum=_checksum(plan, generation),
        )


def _checksum(plan: Plan, generation: Generation) -> str:
    """Chain over the parent's checksum and this call's own ids."""
    digest = xxhash.xxh3_128()
    parent = plan.resolved.parent
    digest.update(f"{parent.checksum if parent else ''}:{plan.prompt.shared}:".encode())
    for ids in (plan.prompt.environment_ids, generation.ids):
        digest.update(array("q", ids).tobytes() + b";")
    return digest.hexdigest()
