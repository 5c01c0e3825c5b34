"""The harness `openclaw`: one rollout of the released program through its documented knobs.

Its configuration file is config_file.py's, reading its output result.py's, telling its requests
apart roles.py's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from mixharness import (
    CallIdentity,
    ComponentConfig,
    Harness,
    HarnessExit,
    Program,
    Recall,
    RenderRule,
    RequestView,
    Session,
)
from mixharness.npm import NODE, NpmRelease
from mixharness.program import command_timeout_s, executable, mcp_servers, run_to_result
from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness_openclaw import roles
from mixharness_openclaw.config_file import APPEND_ONLY_TOOLS, OWN_COMMAND_S, ConfigFile
from mixharness_openclaw.gateway import free_port, gateway, wait_until_idle
from mixharness_openclaw.result import ResultReader

_LESS_MEMORY = "--max-semi-space-size=4"  # a tenth of what is resident, at no cost in time
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "NODE_DISABLE_COMPILE_CACHE": "1",
    "OPENCLAW_NO_RESPAWN": "1",
    "OPENCLAW_NO_AUTO_UPDATE": "1",
}
_DATE = re.compile(r"^Current date: .*\n", re.MULTILINE)


def _without_date(request: ChatRequest, recall: Recall) -> ChatRequest:
    def change(message: ChatMessage) -> ChatMessage:
        if message.role != "system":
            return message
        return replace(message, content=_DATE.sub("", message.content))

    return replace(request, messages=tuple(map(change, request.messages)))


class OpenClawConfig(ComponentConfig):
    """Keys of `[[harness]] name = "openclaw"`."""

    version: str = Field("2026.9.6", pattern=r"^\d+\.\d+\.\d+$")
    """Release on npm; another one needs this package's tests run against it."""
    api: Literal["openai-completions", "openai-responses", "anthropic-messages"] = (
        "openai-completions"
    )
    """Wire format of its model calls."""
    tools: tuple[str, ...] = APPEND_ONLY_TOOLS
    """Tools to offer; empty for all it has. With others than these four its history changes with
    every call, and every call is a fork."""
    time: str = Field("2026-01-01 00:00", pattern=r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}$")
    """Stands in front of the task in place of the minute in which the run was started."""
    compact: bool = False
    """Sum up the history and go on when it nears `context_window`, instead of ending the run."""
    context_window: int = Field(131_072, ge=1024)
    """What the program takes for the model's context: with `compact` it sums up at 75 % of it. At
    200000 and more it keeps 64000 characters of a tool's output, at 100000 half of that."""
    max_output_tokens: int = Field(4096, ge=1)
    """Asked for per call; the proxy takes the smallest of this, the run file and the room left."""
    launch: Literal["process", "gateway"] = "process"
    """With `gateway` the program's Gateway runs beside the agent in the rollout's own sandbox, as
    the tools that start sub-agents need it; it costs as much again."""
    late_exit_s: float = Field(5.0, gt=0.0)
    """Silence after the result before a program that does not exit is killed."""


class OpenClaw(Harness[OpenClawConfig]):
    """Runs the unmodified npm release inside the sandbox (rule 12)."""

    name: ClassVar[str] = "openclaw"
    config_type: ClassVar[type[ComponentConfig]] = OpenClawConfig
    dialects: ClassVar[tuple[str, ...]] = ("openai_chat", "openai_responses", "anthropic_messages")
    render_rules: ClassVar[tuple[RenderRule, ...]] = (
        RenderRule("openclaw_drop_date", 1, _without_date),
    )
    repair_malformed_calls: ClassVar[bool] = True

    def __init__(self, config: OpenClawConfig) -> None:
        super().__init__(config)
        # What it takes for an overflow makes it sum up its history, switched off or not.
        self.ends_at_overflow = not config.compact

    async def install(self, cache: Path) -> Program:
        """Put the pinned release and a Node under `cache`; returns at once when it is there.

        Raises:
            RuntimeError: npm, or the program's first start, failed.
        """
        return await self._release().install(cache)

    def find(self, cache: Path) -> Program:
        """Return the installed release.

        Raises:
            ProgramMissingError: with the command that installs it.
        """
        return self._release().find(cache)

    def role_of(self, request: RequestView) -> CallIdentity | None:
        """Read the program's session header."""
        return roles.role_of(request)

    async def run(self, session: Session) -> HarnessExit:
        """Run the program to its result; a killed late exit has no exit code but is completed.

        Raises:
            RuntimeError: with `launch = "gateway"`, the Gateway did not start or not become idle.
        """
        sandbox, output = session.sandbox, ResultReader()
        port = free_port() if self.config.launch == "gateway" else 0
        program = [f"{sandbox.program_path}/{NODE}", _LESS_MEMORY, executable(session)]
        env, task = await self._prepare(session, port)
        # Not `agent exec`: there the session has a random id, which stands in the prompt.
        agent = [*program, "agent", "--session-id", roles.SESSION_ID, "--message-file", task]
        agent += ["--json", "--timeout", "0"]
        late_exit_s = self.config.late_exit_s
        if not port:
            return await run_to_result(sandbox, [*agent, "--local"], env, output, late_exit_s)
        async with gateway(sandbox, program, env):
            ended = await run_to_result(sandbox, agent, env, output, late_exit_s)
            if output.spawned:
                await wait_until_idle(sandbox, program, env, session.limits.wall_s)
        return ended

    async def _prepare(self, session: Session, port: int) -> tuple[dict[str, str], str]:
        """Write the rollout's own files; return the environment and the path of the prompt."""
        sandbox, home = session.sandbox, session.sandbox.home
        config, task = f"{home}/openclaw.json", f"{home}/task.md"
        await sandbox.write(config, self._config_file(session, port).text())
        await sandbox.write(task, f"[{self.config.time}] {session.task.prompt}".encode())
        env = _ENVIRONMENT | {
            "HOME": home,
            "TMPDIR": f"{home}/tmp",
            "OPENCLAW_CONFIG_PATH": config,
            "OPENCLAW_STATE_DIR": f"{home}/state",
        }
        return env, task

    def _release(self) -> NpmRelease:
        return NpmRelease(
            harness=self.name,
            package="openclaw",
            version=self.config.version,
            executable="node_modules/openclaw/openclaw.mjs",
            first_start=("--version",),
        )

    def _config_file(self, session: Session, port: int) -> ConfigFile:
        config = self.config
        return ConfigFile(
            api=config.api,
            base_url=session.base_url,
            secret=session.secret,
            model=session.model,
            workspace=session.sandbox.workspace,
            tools=config.tools,
            compact=config.compact,
            context_window=config.context_window,
            max_output_tokens=config.max_output_tokens,
            wall_s=session.limits.wall_s,
            command_s=command_timeout_s(session.limits, OWN_COMMAND_S),
            mcp_servers=mcp_servers(session.task),
            gateway_port=port,
        )
