"""The harness `pi`: one rollout of the released program through its documented knobs.

Installing and running a program are the SDK's (npm.py, program.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from mixharness import ComponentConfig, Harness, HarnessExit, Program, Session
from mixharness.npm import NODE, NpmRelease
from mixharness.program import ProgramOutput, executable, prompt_argument, run_to_result

_FLAGS = (
    *("--print", "--mode", "json", "--no-session", "--offline", "--no-approve"),
    *("--no-extensions", "--no-skills", "--no-prompt-templates", "--no-context-files"),
)
_LONGEST = 10_000_000
"""Tokens of context and answer: only the proxy knows the real limits."""
_OVERFLOW = ("maximum context length", "prompt is too long")
"""Of the proxy's own words, which the program repeats."""


class PiConfig(ComponentConfig):
    """Keys of `[[harness]] name = "pi"`."""

    version: str = Field("1.6.0", pattern=r"^\d+\.\d+\.\d+$")
    """Release on npm; another one needs this package's tests run against it."""
    api: Literal["openai-completions", "openai-responses", "anthropic-messages"] = (
        "openai-completions"
    )
    """Wire format of its model calls."""
    tools: tuple[str, ...] = ("read", "bash", "edit", "write")
    """Tools to offer: these, `grep`, `find` and `ls`."""
    system_prompt: str = "Do the task in the current folder, then say what you did."
    """Replaces the program's own; empty keeps that one."""
    late_exit_s: float = Field(5.0, gt=0.0)
    """Silence after the result before a program that does not exit is killed."""


class Pi(Harness[PiConfig]):
    """Runs the unmodified npm release inside the sandbox (rule 12)."""

    name: ClassVar[str] = "pi"
    config_type: ClassVar[type[ComponentConfig]] = PiConfig
    dialects: ClassVar[tuple[str, ...]] = ("openai_chat", "openai_responses", "anthropic_messages")

    async def install(self, cache: Path) -> Program:
        """Put the pinned release and a Node under `cache`; returns at once when it is there."""
        return await self._release().install(cache)

    def find(self, cache: Path) -> Program:
        """Return the installed release."""
        return self._release().find(cache)

    async def run(self, session: Session) -> HarnessExit:
        """Run the program to its result; a killed late exit has no exit code but is completed.

        Raises:
            ValueError: the task's prompt does not fit into one argument.
        """
        sandbox, config = session.sandbox, self.config
        home, folder = sandbox.home, f"{sandbox.home}/pi"
        await sandbox.write(f"{folder}/models.json", self._models(session))
        await sandbox.write(f"{folder}/settings.json", _settings())
        argv = [f"{sandbox.program_path}/{NODE}", executable(session), *_FLAGS]
        argv += ["--model", f"proxy/{session.model}", "--tools", ",".join(config.tools)]
        if config.system_prompt:
            argv += ["--system-prompt", config.system_prompt]
        argv += ["--", prompt_argument(session.task)]
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home}
        env |= {"TMPDIR": f"{home}/tmp", "PI_CODING_AGENT_DIR": folder, "PI_TELEMETRY": "0"}
        return await run_to_result(sandbox, argv, env, EventStream(), config.late_exit_s)

    def _release(self) -> NpmRelease:
        return NpmRelease(
            harness=self.name,
            package="@earendil-works/pi-coding-agent",
            version=self.config.version,
            executable="node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js",
            first_start=("--version",),
        )

    def _models(self, session: Session) -> bytes:
        rooted = self.config.api == "anthropic-messages"  # its client adds `/v1` by itself
        limits = {"contextWindow": _LONGEST, "maxTokens": _LONGEST}
        provider = {
            "baseUrl": session.base_url if rooted else f"{session.base_url}/v1",
            "api": self.config.api,
            "apiKey": session.secret,
            # Otherwise it drops the reasoning of earlier turns, or says it in the answer's text.
            "models": [{"id": session.model, "reasoning": True, **limits}],
            "compat": {"allowEmptySignature": True} if rooted else {},
        }
        return orjson.dumps({"providers": {"proxy": provider}})


class EventStream(ProgramOutput):
    """Keeps the last assistant message, and how the run ended once it is settled."""

    _ended = "error"

    def read(self, line: bytes) -> None:
        """Read one event; anything else is for people."""
        try:
            event: Any = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        message = event.get("message") or {}
        if event["type"] == "agent_settled":
            self.reason = self._ended
        elif event["type"] == "message_end" and message.get("role") == "assistant":
            problem = message.get("errorMessage", "")
            texts = [part.get("text", "") for part in message["content"]]
            self.message = problem or "".join(texts)
            overflow = any(words in problem for words in _OVERFLOW)
            self._ended = "context_overflow" if overflow else "error" if problem else "completed"


def _settings() -> bytes:
    return orjson.dumps(
        {
            "compaction": {"enabled": False},
            "httpIdleTimeoutMs": "disabled",  # a held request is no failed one
            "retry": {"maxRetries": 2, "baseDelayMs": 500},
        }
    )
