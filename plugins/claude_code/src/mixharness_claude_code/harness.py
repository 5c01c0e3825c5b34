"""The harness `claude_code`: one rollout of the released program through its documented knobs.

Installing is install.py's, reading its output events.py's, telling its requests apart roles.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import orjson
from pydantic import Field, model_validator

from mixharness import (
    CallIdentity,
    ComponentConfig,
    Harness,
    HarnessExit,
    MatchRule,
    Program,
    RequestView,
    Session,
)
from mixharness.program import (
    command_timeout_s,
    executable,
    mcp_servers,
    prompt_argument,
    run_to_result,
)
from mixharness_claude_code import install, roles
from mixharness_claude_code.arguments import ARGUMENTS
from mixharness_claude_code.events import EventStream

_BARE_TOOLS = {"Bash", "Edit", "Read"}
_OWN_COMMAND_S = {"BASH_DEFAULT_TIMEOUT_MS": 120.0, "BASH_MAX_TIMEOUT_MS": 600.0}

_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "IS_SANDBOX": "1",  # lets it skip permissions when the sandbox's user is root
    "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_PROMPT_CACHING": "1",
    "MAX_THINKING_TOKENS": "0",
    # It does not stop by itself: the proxy's "prompt is too long" is the real limit.
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "1000000",
}


class ClaudeCodeConfig(ComponentConfig):
    """Keys of `[[harness]] name = "claude_code"`."""

    version: str = Field("2.1.328", pattern=r"^\d+\.\d+\.\d+$")
    """Release on npm. The hint headers are undocumented, so another one needs the tests run."""
    tools: tuple[str, ...] = ("Bash",)
    """Built-in tools to offer. With `bare` only Bash, Edit and Read exist."""
    bare: bool = True
    """Minimal mode: no CLAUDE.md, hooks, skills or environment block in the prompt."""
    system_prompt: str = "Do the task in the current folder, then say what you did."
    """Replaces the program's own; empty keeps that one (it holds the folder and the date)."""
    compact: bool = False
    """Sum up the history and go on when a prompt no longer fits, instead of ending the run."""
    max_retries: int = Field(2, ge=0, le=10)
    """Requests repeated after an error of the model server."""
    max_output_tokens: int = Field(4096, ge=1)
    """Asked for per call; the proxy takes the smallest of this, the run file and the room left."""
    late_exit_s: float = Field(5.0, gt=0.0)
    """Silence after the result before a program that does not exit is killed."""

    @model_validator(mode="after")
    def _tools_exist(self) -> Self:
        missing = sorted(set(self.tools) - _BARE_TOOLS)
        if self.bare and missing:
            raise ValueError(
                f"with bare = true the program has only Bash, Edit and Read, not "
                f"{', '.join(missing)}; set bare = false for more"
            )
        return self


class ClaudeCode(Harness[ClaudeCodeConfig]):
    """Runs the unmodified npm release inside the sandbox (rule 12)."""

    name: ClassVar[str] = install.NAME
    config_type: ClassVar[type[ComponentConfig]] = ClaudeCodeConfig
    dialects: ClassVar[tuple[str, ...]] = ("anthropic_messages",)
    match_rules: ClassVar[tuple[MatchRule, ...]] = (ARGUMENTS,)

    async def install(self, cache: Path) -> Program:
        """Put the pinned release under `cache`; returns at once when it is there.

        Raises:
            RuntimeError: npm failed.
        """
        return await install.release(self.config.version).install(cache)

    def find(self, cache: Path) -> Program:
        """Return the installed release.

        Raises:
            ProgramMissingError: with the command that installs it.
        """
        return install.release(self.config.version).find(cache)

    def role_of(self, request: RequestView) -> CallIdentity | None:
        """Read the program's hint headers."""
        return roles.role_of(request)

    async def run(self, session: Session) -> HarnessExit:
        """Run the program to its result; a killed late exit has no exit code but is completed.

        Raises:
            ValueError: the task's prompt does not fit into one argument.
        """
        argv, env = self._command(session), self._environment(session)
        late_exit_s = self.config.late_exit_s
        return await run_to_result(session.sandbox, argv, env, EventStream(), late_exit_s)

    def _command(self, session: Session) -> list[str]:
        config = self.config
        # A settings file in the workspace may set another base URL, and it beats the process
        # environment: no such file is read, and --settings beats any that were.
        settings = orjson.dumps({"env": {"ANTHROPIC_BASE_URL": session.base_url}}).decode()
        command = [executable(session), "--print"]
        command += ["--output-format", "stream-json", "--verbose", "--model", session.model]
        command += ["--max-turns", str(session.limits.max_turns)]
        command += ["--setting-sources", "", "--settings", settings]
        command += ["--dangerously-skip-permissions", "--no-session-persistence"]
        command += ["--disable-slash-commands", "--tools", ",".join(config.tools)]
        command += _mcp(mcp_servers(session.task))
        command += ["--bare"] if config.bare else []
        command += ["--system-prompt", config.system_prompt] if config.system_prompt else []
        return [*command, "--", prompt_argument(session.task)]

    def _environment(self, session: Session) -> dict[str, str]:
        home = session.sandbox.home
        # Without compaction a rollout is one trajectory.
        compaction = {} if self.config.compact else {"DISABLE_COMPACT": "1"}
        timeouts = {
            name: str(int(command_timeout_s(session.limits, own_s) * 1000))
            for name, own_s in _OWN_COMMAND_S.items()
        }
        return (
            _ENVIRONMENT
            | compaction
            | timeouts
            | {
                "HOME": home,
                "TMPDIR": home,
                "CLAUDE_CONFIG_DIR": f"{home}/.claude",
                "ANTHROPIC_BASE_URL": session.base_url,
                "ANTHROPIC_API_KEY": session.secret,
                "API_TIMEOUT_MS": str(int(session.limits.wall_s * 1000)),
                "CLAUDE_CODE_MAX_RETRIES": str(self.config.max_retries),
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self.config.max_output_tokens),
            }
        )


def _mcp(servers: Mapping[str, str]) -> list[str]:
    """Return the options that name the task's MCP servers, and no others."""
    known = {name: {"type": "http", "url": url} for name, url in servers.items()}
    config = orjson.dumps({"mcpServers": known}).decode()
    return ["--strict-mcp-config", "--mcp-config", config] if servers else []
