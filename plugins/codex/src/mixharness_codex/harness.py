"""The harness `codex`: one rollout of the released program through its documented knobs.

Its configuration file is config_file.py's, reading its output events.py's, telling its requests
apart roles.py's.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from mixharness import (
    CallIdentity,
    ComponentConfig,
    Harness,
    HarnessExit,
    Program,
    RequestView,
    Session,
)
from mixharness.npm import NpmRelease, linux_architecture
from mixharness.program import (
    command_timeout_s,
    executable,
    mcp_servers,
    prompt_argument,
    run_to_result,
)
from mixharness_codex import roles
from mixharness_codex.config_file import KEY_VARIABLE, OWN_WAIT_S, ConfigFile
from mixharness_codex.events import EventStream

_TRIPLES = {"x64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}


class CodexConfig(ComponentConfig):
    """Keys of `[[harness]] name = "codex"`."""

    version: str = Field("0.169.0", pattern=r"^\d+\.\d+\.\d+$")
    """Release on npm; another one needs this package's tests run against it."""
    system_prompt: str = "Do the task in the current folder, then say what you did."
    """Replaces the program's own of 17 KB; empty keeps that one."""
    sandbox_mode: Literal["workspace-write", "danger-full-access"] = "workspace-write"
    """What the program lets commands do, on top of the rollout's sandbox. The first cuts them off
    from the network, the proxy included."""
    agents: bool = False
    """Offer the tools that start sub-agents."""
    context_window: int = Field(10_000_000, ge=1024)
    """What the program takes for the model's context: it compacts at about 90 % of it. The default
    never compacts; the proxy's "does not fit" ends the run at the real limit."""
    max_retries: int = Field(2, ge=0, le=10)
    """Requests repeated after an error of the model server."""
    late_exit_s: float = Field(5.0, gt=0.0)
    """Silence after the result before a program that does not exit is killed."""


class Codex(Harness[CodexConfig]):
    """Runs the unmodified npm release inside the sandbox (rule 12).

    It sends back what it was shown to the byte, so there are no match rules.
    """

    name: ClassVar[str] = "codex"
    config_type: ClassVar[type[ComponentConfig]] = CodexConfig
    dialects: ClassVar[tuple[str, ...]] = ("openai_responses",)

    async def install(self, cache: Path) -> Program:
        """Put the pinned release under `cache`; returns at once when it is there.

        Raises:
            RuntimeError: npm failed.
        """
        return await self._release().install(cache)

    def find(self, cache: Path) -> Program:
        """Return the installed release.

        Raises:
            ProgramMissingError: with the command that installs it.
        """
        return self._release().find(cache)

    def role_of(self, request: RequestView) -> CallIdentity | None:
        """Read the program's headers."""
        return roles.role_of(request)

    async def run(self, session: Session) -> HarnessExit:
        """Run the program to its result; a killed late exit has no exit code but is completed.

        Raises:
            ValueError: the task's prompt does not fit into one argument.
        """
        argv = [executable(session), "exec", "--json", "--skip-git-repo-check", "--ephemeral"]
        argv += ["--", prompt_argument(session.task)]
        env = await self._prepare(session)
        late_exit_s = self.config.late_exit_s
        return await run_to_result(session.sandbox, argv, env, EventStream(), late_exit_s)

    def _release(self) -> NpmRelease:
        architecture = linux_architecture(self.name)
        vendor = f"node_modules/@openai/codex-linux-{architecture}/vendor/{_TRIPLES[architecture]}"
        return NpmRelease(
            harness=self.name,
            package="@openai/codex",
            version=self.config.version,
            executable=f"{vendor}/bin/codex",
        )

    async def _prepare(self, session: Session) -> dict[str, str]:
        """Write the rollout's own configuration and return the environment that points at it."""
        home, config = session.sandbox.home, self.config
        folder = f"{home}/codex"
        instructions = f"{folder}/instructions.md" if config.system_prompt else ""
        file = ConfigFile(
            model=session.model,
            base_url=f"{session.base_url}/v1",
            instructions=instructions,
            sandbox_mode=config.sandbox_mode,
            context_window=config.context_window,
            agents=config.agents,
            max_retries=config.max_retries,
            idle_timeout_s=session.limits.wall_s,
            wait_s=command_timeout_s(session.limits, OWN_WAIT_S),
            mcp_servers=mcp_servers(session.task),
        )
        await session.sandbox.write(f"{folder}/config.toml", file.text().encode())
        if instructions:
            await session.sandbox.write(instructions, config.system_prompt.encode())
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "HOME": home,
            "CODEX_HOME": folder,
            KEY_VARIABLE: session.secret,
        }
