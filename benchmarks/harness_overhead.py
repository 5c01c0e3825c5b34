"""What a rollout costs beside the bare program: sandbox, proxy, records, settling and grading.

Each program does one task of 20 model calls twice, in turn: in a rollout, and as a plain process
that is pointed straight at a server with the same answers. Every call samples for half a second in
both. `ratio` is of the times from the program's start to its exit; what a rollout takes before and
after that stands beside it. AgentLoop is left out: it is no program but part of this process, so
there is nothing to run bare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import structlog
from benchmarks.bare_program import CannedServer, PlainProcess

from mixharness.builtin.scripted import ScriptedConfig
from mixharness.certify.policy import Part, ScriptedPolicy
from mixharness.certify.situations import Call, Situation, Turn
from mixharness.component import ComponentConfig
from mixharness.engine import GenerateRequest, Generation
from mixharness.errors import ProgramMissingError
from mixharness.harness import Harness, Program, Session
from mixharness.plugins import Registry, load_plugins
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.cache import cache_dir
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.sandbox import Workspace
from mixharness.types import HarnessExit, Limits, Rollout, Score, Task
from mixharness.verifier import Verifier

log = structlog.get_logger()

# Codex's own sandbox needs rights that a container has not.
SETTINGS: dict[str, dict[str, Any]] = {
    "claude_code": {},
    "codex": {"sandbox_mode": "danger-full-access"},
    "openclaw": {},
}
CALLS, SAMPLE_S = 20, 0.5
CONTEXT = 1 << 18
"""Tokens of one byte each."""
STEP = Turn(calls=(Call(shell="echo step >> steps.txt"),))
TURNS = (*[STEP] * (CALLS - 1), Turn(text="Done."))
SITUATION = Situation(name="steps", about="many small steps", turns=TURNS)
TASK = Task(id="steps", prompt="Write steps.", verifier="steps", files={"a.txt": "alpha\n"})
LIMITS = Limits(max_turns=CALLS + 5)


class SteadyPolicy(ScriptedPolicy):
    """Samples for `SAMPLE_S`, its own work included."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Say the next turn."""
        ends = time.perf_counter() + SAMPLE_S
        generation = await super().generate(request)
        await asyncio.sleep(ends - time.perf_counter())
        return generation


@dataclass(slots=True)
class Stamps:
    """When the parts of one rollout began, and when the last one ended."""

    opening: float = 0.0
    running: float = 0.0
    settling: float = 0.0
    grading: float = 0.0
    end: float = 0.0

    def seconds(self) -> dict[str, float]:
        """Return how long each part took."""
        return {
            "run_s": self.settling - self.running,
            "open_s": self.running - self.opening,
            "settle_s": self.grading - self.settling,
            "grade_s": self.end - self.grading,
        }


class Steps(Verifier[ComponentConfig]):
    """Counts the steps in a fresh sandbox, as tasks with a grader of their own do."""

    name = TASK.verifier

    def __init__(self, stamps: Stamps) -> None:
        super().__init__(ComponentConfig())
        self._stamps = stamps

    async def score(self, task: Task, rollout: Rollout, workspace: Workspace) -> Score:
        """Return the share of steps that were written."""
        self._stamps.grading = time.perf_counter()
        async with workspace.sandbox() as sandbox:
            done = await sandbox.exec(["grep", "-c", "step", "steps.txt"], timeout_s=60)
        return Score(value=int(done.stdout or 0) / (CALLS - 1))


def timed(harness: Harness[Any], stamps: Stamps) -> Harness[Any]:
    """Return the harness; it notes when its program starts and when it has ended."""
    run = harness.run

    async def noting(session: Session) -> HarnessExit:
        stamps.running = time.perf_counter()
        try:
            return await run(session)
        finally:
            stamps.settling = time.perf_counter()

    harness.run = noting  # type: ignore[method-assign]
    return harness


class Site:
    """Proxy and sandboxes of all rollouts here."""

    def __init__(self, runner: Runner, parts: dict[str, Part], stamps: Stamps) -> None:
        self._runner, self._parts, self._stamps = runner, parts, stamps
        self._samples = 0

    async def rollout(self, harness: Harness[Any], program: Program) -> dict[str, float]:
        """Return the seconds of one rollout's parts.

        Raises:
            RuntimeError: the rollout was not as it should be.
        """
        self._samples += 1
        slot = HarnessSlot(
            label=harness.name,
            harness=timed(harness, self._stamps),
            program=program,
            limits=LIMITS,
        )
        request = RolloutRequest(task=TASK, slot=slot, sample=self._samples, stage="bench")
        self._parts[request.id] = Part(SITUATION)
        self._stamps.opening = time.perf_counter()
        rollout = await run_one(self._runner, request)
        self._stamps.end = time.perf_counter()
        if rollout.failure or rollout.reward != 1.0 or len(rollout.calls) != CALLS:
            found = f"{len(rollout.calls)} calls, reward {rollout.reward}, {rollout.failure}"
            raise RuntimeError(f"{harness.name}: {found}")
        return self._stamps.seconds()


@asynccontextmanager
async def open_site(registry: Registry, sandbox: str) -> AsyncIterator[Site]:
    """Start what the rollouts need; all of it is stopped at the end."""
    cls = registry.get("sandbox", sandbox)
    backend, parts, stamps = cls(cls.config_type()), dict[str, Part](), Stamps()
    policy = SteadyPolicy(ScriptedConfig(turns=("",), context=CONTEXT), parts, SAMPLE_S)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mixharness-bench-"))
        await policy.start()
        stack.push_async_callback(policy.stop)
        stack.push_async_callback(backend.stop)
        await backend.start()
        proxy = Proxy(policy, ProxySettings(max_tokens=4096))
        stack.push_async_callback(proxy.stop)
        await backend.admit(await proxy.start(backend.proxy_host))
        runner = Runner(
            proxy=proxy,
            sandbox=backend,
            verifiers={TASK.verifier: Steps(stamps)},
            store=RunStore(Path(folder)),
            settings=RunnerSettings(max_infra_retries=0),
        )
        yield Site(runner, parts, stamps)


async def bare(harness: Harness[Any], program: Program) -> float:
    """Return the seconds from the start of the bare program to its exit.

    Raises:
        RuntimeError: it did not do what it should.
    """
    server = CannedServer(TURNS, SAMPLE_S)
    with tempfile.TemporaryDirectory(prefix="mixharness-bench-") as folder:
        async with server.running() as base_url:
            session = Session(
                task=TASK,
                program=program,
                sandbox=PlainProcess(Path(folder), program),
                base_url=base_url,
                secret="bench",
                limits=LIMITS,
            )
            began = time.perf_counter()
            ending = await harness.run(session)
            seconds = time.perf_counter() - began
    if ending.reason != "completed" or server.calls != CALLS:
        raise RuntimeError(f"{harness.name}: {server.calls} calls, {ending}")
    return seconds


async def measure(names: Sequence[str], sandbox: str, plays: int) -> dict[str, Any]:
    """Return all figures: medians over `plays`. A program that is not installed is passed over."""
    registry = load_plugins()
    figures: dict[str, dict[str, float]] = {}
    async with open_site(registry, sandbox) as site:
        for name in names:
            cls = registry.get("harness", name)
            config = cls.config_type(**SETTINGS.get(name, {}))
            try:
                program = cls(config).find(cache_dir())
            except ProgramMissingError as exc:
                log.warning("harness_not_measured", harness=name, reason=str(exc))
                continue
            if program is None:
                raise ValueError(f"{name} is no program: there is nothing to run bare")
            bare_s, parts = [], []
            for play in range(plays):
                bare_s.append(await bare(cls(config), program))
                parts.append(await site.rollout(cls(config), program))
                log.info("play", harness=name, play=play, bare_s=bare_s[-1], **parts[-1])
            medians = {key: median(each[key] for each in parts) for key in parts[0]}
            figures[name] = {"ratio": medians.pop("run_s") / median(bare_s), **medians}
    return {"harnesses": figures}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plays", type=int, default=3)
    parser.add_argument("--sandbox", default="docker")
    parser.add_argument("--harness", action="append", help="once per harness; all without")
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    result = asyncio.run(measure(args.harness or list(SETTINGS), args.sandbox, args.plays))
    if args.json:
        print(json.dumps(result))
        return
    for name, found in result["harnesses"].items():
        print(f"{name:<14}" + "".join(f"{key} {value:8.3f}   " for key, value in found.items()))


if __name__ == "__main__":
    main()
