"""The harness `agentloop`: model call, tool calls, tool results, until an answer without a call.

What the tools do is tools.py's, the wire is client.py's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from mixharness import ComponentConfig, Harness, HarnessExit, Session
from mixharness_agentloop.client import ChatClient, ContextOverflow
from mixharness_agentloop.tools import TOOLS, Toolbox

Message = dict[str, Any]


class AgentLoopConfig(ComponentConfig):
    """Keys of `[[harness]] name = "agentloop"`."""

    tools: tuple[Literal["bash", "read", "write", "edit"], ...] = ("bash", "read", "write", "edit")
    """Tools the model is offered, in this order."""
    system_prompt: str = "Use the tools to do the task, then say what you did."
    """First message of every rollout; the same for all, so a group shares its prompt."""
    max_output_chars: int = Field(4000, ge=100)
    """Longest tool result; the middle of a longer one is left out."""
    tool_timeout_s: float = Field(60.0, gt=0.0)
    """Longest time a `bash` command may take, and half of `agent_s` at most."""
    max_invalid: int = Field(3, ge=1)
    """Turns in a row without one understandable tool call before the loop gives up."""


class AgentLoop(Harness[AgentLoopConfig]):
    """Runs its loop on the host and its tools in the sandbox; needs no program."""

    name: ClassVar[str] = "agentloop"
    config_type: ClassVar[type[ComponentConfig]] = AgentLoopConfig
    dialects: ClassVar[tuple[str, ...]] = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        """Run the loop to its end.

        Raises:
            ConnectionError: the model server cannot be reached or answered with an error.
        """
        config = self.config
        # A command is stopped before the whole run is: the policy sees it, and may go on.
        timeout_s = min(config.tool_timeout_s, session.limits.agent_s / 2)
        toolbox = Toolbox(session.sandbox, config.max_output_chars, timeout_s)
        schemas = [TOOLS[name].schema() for name in config.tools]
        messages: list[Message] = [
            {"role": "system", "content": config.system_prompt},
            {"role": "user", "content": session.task.prompt},
        ]
        invalid = 0
        async with ChatClient(session.base_url, session.secret, session.model) as client:
            for _ in range(session.limits.max_turns):
                try:
                    answer = await client.complete(messages, schemas)
                except ContextOverflow as exc:
                    return _end(messages, "context_overflow", str(exc))
                messages.append(answer)
                if not answer.get("tool_calls"):
                    return _end(messages, "completed")
                understood = await self._answer_calls(toolbox, answer["tool_calls"], messages)
                invalid = 0 if understood else invalid + 1
                if invalid >= config.max_invalid:
                    return _end(messages, "invalid_tool_loop", f"{invalid} turns in a row")
        return _end(messages, "max_turns", f"{session.limits.max_turns} model calls")

    async def _answer_calls(
        self, toolbox: Toolbox, calls: list[dict[str, Any]], messages: list[Message]
    ) -> bool:
        """Run the calls in order and append their results; say whether any was understood."""
        understood = False
        for call in calls:
            result = await toolbox.call(self.config.tools, call["function"])
            understood |= result.understood
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.text})
        return understood


def _end(messages: list[Message], reason: str, output: str = "") -> HarnessExit:
    last = messages[-1]
    final = last.get("content") or "" if last["role"] == "assistant" else ""
    return HarnessExit(exit_code=0, output=output, final_message=final, reason=reason)
