"""A rollout as an ATIF trajectory (Agent Trajectory Interchange Format 1.8), tokens included.

Pure: the record and its exchanges in, the models of the package `atif` out. Files are exports.py's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from atif import Trajectory

from mixharness.proxy.chat import ChatMessage, ChatRequest, ToolCall
from mixharness.proxy.dialects.seen import common
from mixharness.proxy.transcript import Exchange
from mixharness.tree.prune import DEFAULT_PRUNING, Pruned, Pruning, prune
from mixharness.tree.tokens import prompt_ids
from mixharness.types import CallRole, ModelCall, Rollout

VERSION = "ATIF-v1.8"
NOTES = (
    "One agent step per model call, in order of arrival; retries and calls that are not trained "
    "are steps too (extra.reason says why). Other steps hold what was new in a call's request. "
    "prompt_token_ids, completion_token_ids and logprobs are those of the engine, never tokenised "
    "again; log-probs are of softmax(logits / temperature)."
)

_Turn = tuple[ModelCall, Exchange]


def to_atif(
    rollout: Rollout, exchanges: Mapping[str, Exchange], pruning: Pruning = DEFAULT_PRUNING
) -> Trajectory:
    """Return a rollout as a trajectory, its sub-agents and side calls embedded in it.

    Args:
        rollout: any rollout, failed ones too.
        exchanges: call id to what was asked and shown; calls without one were never answered and
            are left out.
        pruning: the run's own; says which calls were trained.
    """
    lanes: dict[str, list[_Turn]] = defaultdict(list)
    for call in rollout.calls:
        if call.id in exchanges:
            lanes[_lane(call)].append((call, exchanges[call.id]))
    pruned = prune(rollout.calls, pruning)
    steps = {name: _Lane(rollout, pruned, turns).draw() for name, turns in lanes.items()}
    _refer(steps, {n: turns for n, turns in lanes.items() if _is_subagent(turns)}, rollout.id)
    main = next((c.agent for c in rollout.calls if c.role is CallRole.MAIN), "")
    embedded = [
        _head(rollout, f"{rollout.id}/{name}", turns) | {"steps": steps[name]}
        for name, turns in lanes.items()
        if name != main
    ]
    return Trajectory.model_validate(
        _head(rollout, rollout.id, lanes.get(main, []))
        | {
            "steps": steps.get(main, []),
            "notes": NOTES,
            "extra": _facts(rollout),
            "final_metrics": _totals([step for lane in steps.values() for step in lane]),
            "subagent_trajectories": embedded or None,
        }
    )


def _is_subagent(turns: Sequence[_Turn]) -> bool:
    return turns[0][0].role is CallRole.SUBAGENT


def _lane(call: ModelCall) -> str:
    """Name the conversation a call belongs to; side calls may bear their agent's name."""
    return f"{call.agent}-aside" if call.role is CallRole.AUXILIARY else call.agent


@dataclass(slots=True)
class _Lane:
    """One agent's calls on their way to steps."""

    rollout: Rollout
    pruned: Pruned
    calls: Sequence[_Turn]
    steps: list[dict[str, Any]] = field(default_factory=list)
    step_of_tool: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tool call id to the step that made it."""
    answers: set[str] = field(default_factory=set)
    """Texts and tool call ids of what was answered: not shown again as input."""
    before: tuple[ChatMessage, ...] = ()
    """Messages of the request before."""

    def draw(self) -> list[dict[str, Any]]:
        for call, exchange in self.calls:
            for message in self._new(exchange.request.messages):
                self._put(message)
            self._answer(call, exchange)
            self.before = exchange.request.messages
        return self.steps

    def _new(self, messages: tuple[ChatMessage, ...]) -> Iterator[ChatMessage]:
        """Yield what stands neither in the request before nor ahead of the last known answer."""
        start = common(self.before, messages)
        known = [at + 1 for at, message in enumerate(messages) if self._known(message)]
        yield from messages[max([start, *known]) :]

    def _known(self, message: ChatMessage) -> bool:
        names = {call.id for call in message.tool_calls} or {message.content}
        return message.role == "assistant" and not names.isdisjoint(self.answers)

    def _put(self, message: ChatMessage) -> None:
        if message.role == "tool":
            self._observe(message)
        elif message.role == "assistant":  # written by the harness: no model was asked
            calls = _tool_calls(message.tool_calls)
            self._step("agent", message.content, tool_calls=calls, llm_call_count=0)
        else:
            self._step(message.role, message.content)

    def _observe(self, message: ChatMessage) -> None:
        """Put a tool's result on the step that called it, else on a step of its own."""
        step = self.step_of_tool.get(message.tool_call_id)
        source = message.tool_call_id if step else None
        step = step or self._step("system", "")
        results = step.setdefault("observation", {"results": []})["results"]
        results.append({"source_call_id": source, "content": message.content})

    def _answer(self, call: ModelCall, exchange: Exchange) -> None:
        answer = exchange.answer
        step = self._step(
            "agent",
            answer.content,
            model_name=exchange.request.model or None,
            reasoning_content=answer.reasoning or None,
            tool_calls=_tool_calls(answer.tool_calls),
            llm_call_count=1,
            metrics=_metrics(self.rollout, call),
            extra=_verdict(call, self.pruned),
        )
        self.step_of_tool.update((each.id, step) for each in answer.tool_calls)
        self.answers |= {each.id for each in answer.tool_calls} or {answer.content}

    def _step(self, source: str, message: str, **fields: Any) -> dict[str, Any]:
        step = {"step_id": len(self.steps) + 1, "source": source, "message": message, **fields}
        self.steps.append(step)
        return step


def _tool_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]] | None:
    return [
        {"tool_call_id": c.id, "function_name": c.name, "arguments": _arguments(c.arguments)}
        for c in calls
    ] or None


def _arguments(text: str) -> dict[str, Any]:
    """Return arguments as an object; what is none (a harness wrote it) is kept as text."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"text": text}


def _metrics(rollout: Rollout, call: ModelCall) -> dict[str, Any]:
    prompt = prompt_ids(rollout.calls, call.id)
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(call.sampled_ids),
        "prompt_token_ids": prompt,
        "completion_token_ids": call.sampled_ids,
        "logprobs": call.logprobs,
        "extra": {
            "temperature": call.temperature,
            "versions": [asdict(span) for span in call.versions],
        },
    }


def _verdict(call: ModelCall, pruned: Pruned) -> dict[str, Any]:
    """Return what the record says of a call beyond its tokens."""
    names = ("index", "role", "finish_reason", "parse_status", "delivery", "fork", "fork_span")
    facts = {name: getattr(call, name) for name in names}
    credit = pruned.credits.get(call.id, 0.0)
    return {"call_id": call.id, **facts, "credit": credit, "reason": pruned.reasons.get(call.id)}


def _head(rollout: Rollout, name: str, turns: Sequence[_Turn]) -> dict[str, Any]:
    request = turns[0][1].request if turns else ChatRequest(messages=())
    tools = [{"type": "function", "function": asdict(tool)} for tool in request.tools]
    return {
        "schema_version": VERSION,
        "session_id": rollout.id,
        "trajectory_id": name,
        "agent": {
            "name": rollout.key.harness,
            "version": rollout.program_version or "unknown",
            "model_name": request.model or None,
            "tool_definitions": tools or None,
        },
    }


def _facts(rollout: Rollout) -> dict[str, Any]:
    return {
        "task_id": rollout.key.task_id,
        "harness": rollout.key.harness,
        "score": rollout.score.value if rollout.score else None,
        "failure": rollout.failure.kind if rollout.failure else None,
        "policy_version": rollout.policy_version,
    }


def _totals(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    return {
        f"total_{name}": sum(each[name] for each in metrics)
        for name in ("prompt_tokens", "completion_tokens")
    }


def _refer(
    steps: Mapping[str, Sequence[dict[str, Any]]],
    subagents: Mapping[str, Sequence[_Turn]],
    rollout_id: str,
) -> None:
    """Link each sub-agent to the result of the tool call whose input began it."""
    waiting = {name: _first_text(turns[0][1].request) for name, turns in subagents.items()}
    for step in (step for lane in steps.values() for step in lane):
        results = {r["source_call_id"]: r for r in step.get("observation", {}).get("results", ())}
        for call in step.get("tool_calls") or ():
            result = results.get(call["tool_call_id"])
            inputs = [v for v in call["arguments"].values() if isinstance(v, str) and len(v) > 9]
            found = (n for n, text in waiting.items() if any(v in text for v in inputs))
            name = next(found, None) if result is not None else None
            if name is not None:
                reference = {"trajectory_id": f"{rollout_id}/{name}"}
                results[call["tool_call_id"]]["subagent_trajectory_ref"] = [reference]
                del waiting[name]


def _first_text(request: ChatRequest) -> str:
    return "\n".join(m.content for m in request.messages if m.role == "user")
