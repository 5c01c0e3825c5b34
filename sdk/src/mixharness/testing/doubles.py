"""Small real parts for tests: a harness, a verifier and a tracker. The engine is builtin/'s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from pydantic import Field

from mixharness.component import ComponentConfig
from mixharness.harness import Harness, Session
from mixharness.sandbox import Workspace
from mixharness.tracker import Tracker
from mixharness.types import HarnessExit, Rollout, Score, Task
from mixharness.verifier import Verifier


class EchoHarnessConfig(ComponentConfig):
    """Keys of `[[harness]] name = "echo"`."""

    prompt: str = ""
    """System prompt; empty sends none."""
    file: str = "answer.txt"
    """Workspace file that gets the answer."""
    turns: int = Field(default=1, gt=0)
    """Model calls; each continues the conversation."""


class EchoHarness(Harness[EchoHarnessConfig]):
    """Asks the model and writes the last answer to a file. Runs on the host, needs no program."""

    name = "echo"
    config_type = EchoHarnessConfig
    dialects = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        """Ask `turns` times, with a reminder in between."""
        messages: list[dict[str, Any]] = []
        if self.config.prompt:
            messages.append({"role": "system", "content": self.config.prompt})
        messages.append({"role": "user", "content": session.task.prompt})
        answer = ""
        async with httpx.AsyncClient(
            base_url=session.base_url,
            headers={"authorization": f"Bearer {session.secret}"},
            timeout=session.limits.wall_s,
            trust_env=False,  # the proxy is on this machine
        ) as client:
            for _ in range(self.config.turns):
                body = {"model": session.model, "messages": messages}
                response = await client.post("/v1/chat/completions", json=body)
                response.raise_for_status()
                message = response.json()["choices"][0]["message"]
                answer = message.get("content") or ""
                messages += [message, {"role": "user", "content": "Go on."}]
        await session.sandbox.write(self.config.file, answer.encode())
        return HarnessExit(exit_code=0, final_message=answer)


class FixedVerifierConfig(ComponentConfig):
    """Keys of `[[verifier]] name = "fixed"`."""

    value: float = Field(default=1.0, ge=0, le=1)


class FixedVerifier(Verifier[FixedVerifierConfig]):
    """Gives every workspace one score."""

    name = "fixed"
    config_type = FixedVerifierConfig

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Return the configured score."""
        return Score(value=self.config.value)


class MemoryTracker(Tracker[ComponentConfig]):
    """Keeps what it is given.

    Attributes:
        metrics: (step, metrics) in order.
        rollouts: (step, rollout) in order.
    """

    name = "memory"

    def __init__(self, config: ComponentConfig | None = None) -> None:
        super().__init__(config or ComponentConfig())
        self.metrics: list[tuple[int, dict[str, Any]]] = []
        self.rollouts: list[tuple[int, Rollout]] = []
        self.started = False

    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Allow logging."""
        self.started = True

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Keep the metrics.

        Raises:
            RuntimeError: before `start`.
        """
        if not self.started:
            raise RuntimeError("log before start")
        self.metrics.append((step, dict(metrics)))

    def log_rollout(self, rollout: Rollout, step: int) -> None:
        """Keep the rollout."""
        self.rollouts.append((step, rollout))

    def finish(self) -> None:
        """End."""
        self.started = False
