"""The `reward_script` verifier: a task's own script says what a workspace is worth.

The script comes into a fresh sandbox after the agent's is gone. Which tasks have one is a task
source's business.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from mixharness.component import ComponentConfig
from mixharness.proxy.chat import ChatMessage
from mixharness.sandbox import ExecResult, Sandbox, Workspace
from mixharness.types import Rollout, Score, Task
from mixharness.verifier import Verifier

FOLDER, SCRIPT = "reward", "reward.sh"
PAYLOAD_VARIABLE = "OPENCLAW_REWARD_PAYLOAD"
_ROUNDING = 1e-9
_TAIL = 500


class RewardScriptConfig(ComponentConfig):
    """Keys of `[[verifier]] name = "reward_script"`."""

    timeout_s: float = Field(90.0, gt=0)
    """Longest time a script may take."""


class RewardScript(Verifier[RewardScriptConfig]):
    """Runs `reward.sh` of the host folder `task.answer["reward"]`; its last line is the score.

    The folder stands in the workspace as `reward/`, whatever the agent left there. The file that
    `OPENCLAW_REWARD_PAYLOAD` names holds task_id, user_query, metadata, final_message and
    transcript, the last in the form of OpenClaw's session files.
    """

    name = "reward_script"
    config_type = RewardScriptConfig

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Run the script in a fresh sandbox and read the score.

        Raises:
            TimeoutError: the script ran too long.
            RuntimeError: it failed.
            ValueError: its last line is no number in [0, 1].
        """
        payload = await asyncio.to_thread(_payload, task, rollout, workspace)
        async with workspace.sandbox({FOLDER: _folder(task)}) as sandbox:
            result = await self._run(sandbox, payload)
        return Score(value=_value(result))

    async def validate(self, task: Task) -> None:
        """Refuse a task without a script."""
        script = _folder(task) / SCRIPT
        if not script.is_file():
            raise ValueError(f"task {task.id!r}: {script} is missing; it prints the score")

    async def _run(self, sandbox: Sandbox, payload: bytes) -> ExecResult:
        path = f"{sandbox.home}/reward_payload.json"
        await sandbox.write(path, payload)
        result = await sandbox.exec(
            ["bash", f"{sandbox.workspace}/{FOLDER}/{SCRIPT}"],
            env={PAYLOAD_VARIABLE: path, "HOME": sandbox.home, "LC_ALL": "C.UTF-8"},
            # `python3 -c` imports from the working folder first: it must not be the agent's.
            cwd=sandbox.home,
            timeout_s=self.config.timeout_s,
        )
        if result.timed_out:
            raise TimeoutError(f"{SCRIPT} ran for more than {self.config.timeout_s} s")
        return result


def _folder(task: Task) -> Path:
    folder = task.answer.get(FOLDER)
    if not isinstance(folder, str):
        raise ValueError(f'task {task.id!r} has no answer["{FOLDER}"], the folder of its {SCRIPT}')
    return Path(folder)


def _value(result: ExecResult) -> float:
    if result.exit_code != 0:
        tail = result.stderr[-_TAIL:].decode(errors="replace").strip()
        raise RuntimeError(f"{SCRIPT} ended with code {result.exit_code}: {tail}")
    lines = result.stdout.decode(errors="replace").strip().splitlines()
    last = lines[-1].strip() if lines else ""
    wrong = f"{SCRIPT} must print a number in [0, 1] last, got {last[:_TAIL]!r}"
    try:
        value = float(last)
    except ValueError as exc:
        raise ValueError(wrong) from exc
    if not -_ROUNDING <= value <= 1 + _ROUNDING:  # also refuses NaN
        raise ValueError(wrong)
    return min(1.0, max(0.0, value))


def _payload(task: Task, rollout: Rollout, workspace: Workspace) -> bytes:
    payload = {
        "task_id": task.id,
        "user_query": task.prompt,
        "metadata": dict(task.metadata),
        "final_message": rollout.exit.final_message if rollout.exit else "",
        "transcript": session_entries(workspace.transcript()),
    }
    # Escaped to ASCII: a policy can sample lone surrogates, which UTF-8 cannot hold.
    return json.dumps(payload).encode("ascii")


def session_entries(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return a conversation in the form of OpenClaw's session files, without the system prompt."""
    tools = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        {"type": "message", "message": _message(message, tools)}
        for message in messages
        if message.role != "system"
    ]


def _message(message: ChatMessage, tools: Mapping[str, str]) -> Mapping[str, Any]:
    content: list[dict[str, Any]] = []
    if message.reasoning:
        content.append({"type": "thinking", "thinking": message.reasoning})
    if message.content:
        content.append({"type": "text", "text": message.content})
    content += [
        {"type": "toolCall", "id": c.id, "name": c.name, "arguments": _arguments(c.arguments)}
        for c in message.tool_calls
    ]
    if message.role != "tool":
        return {"role": message.role, "content": content}
    return {
        "role": "toolResult",
        "toolCallId": message.tool_call_id,
        "toolName": tools.get(message.tool_call_id, message.name),
        "content": content,
    }


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except json.JSONDecodeError:
        return text
