"""An open run: engine, proxy, sandbox, store and trackers, closed again on every path.

Collecting and evaluating stand here too. Updates of the policy are the trainer's.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson
import structlog

from mixharness.assemble import build, build_harness_slots, build_verifiers, load_tasks
from mixharness.config import RunConfig
from mixharness.engine import InferenceEngine
from mixharness.errors import ConfigError, EngineError, SandboxError, boundary
from mixharness.limits import nesting_problem, overridden
from mixharness.logs import logs_to
from mixharness.plugins import Registry, describe
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.refill import collect_groups
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.run_folder import RUN_FILE, note_run_file
from mixharness.run_tables import LimitsTable, PruningTable, check
from mixharness.sandbox import SandboxBackend
from mixharness.tracker import Tracker
from mixharness.tree.audit import HarnessAudit, audit
from mixharness.tree.prune import Pruning
from mixharness.types import Rollout, Task
from mixharness.verifier import Verifier

log = structlog.get_logger()

Pair = tuple[Task, HarnessSlot]
"""A task and the harness it is tried in: what one group is of (rule 5)."""


class Trackers:
    """All trackers of a run as one; a raise in one is logged and stops nothing."""

    def __init__(self, trackers: Sequence[Tracker[Any]]) -> None:
        self._trackers = trackers

    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin."""
        for tracker in self._trackers:
            with _logged(tracker):
                tracker.start(run_dir, config)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Hand on the metrics of one step."""
        for tracker in self._trackers:
            with _logged(tracker):
                tracker.log(metrics, step)

    def log_rollout(self, rollout: Rollout, step: int) -> None:
        """Hand on one finished rollout."""
        for tracker in self._trackers:
            with _logged(tracker):
                tracker.log_rollout(rollout, step)

    def finish(self) -> None:
        """End."""
        for tracker in self._trackers:
            with _logged(tracker):
                tracker.finish()


@contextlib.contextmanager
def _logged(tracker: Tracker[Any]) -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # plugin code
        log.warning("tracker_failed", tracker=tracker.name, error=describe(exc))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run works with while it is open. Made by `open_run`, which owns all of it."""

    config: RunConfig
    registry: Registry
    run_dir: Path
    engine: InferenceEngine[Any]
    proxy: Proxy
    runner: Runner
    slots: Sequence[HarnessSlot]
    store: RunStore
    trackers: Trackers
    tasks: Mapping[str, Sequence[Task]]
    """By use: `train`, `eval`, `cold_start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All parts of a run, built and not started."""

    slots: Sequence[HarnessSlot]
    tasks: Mapping[str, Sequence[Task]]
    verifiers: Mapping[str, Verifier[Any]]
    sandbox: SandboxBackend[Any]
    engine: InferenceEngine[Any]
    trackers: Trackers


async def build_parts(
    config: RunConfig, registry: Registry, engine: InferenceEngine[Any] | None = None
) -> Parts:
    """Build and check everything that can be wrong before anything is started.

    Raises:
        ConfigError: tasks or verifiers do not fit the run file.
        PluginError: the constructor of a part raised.
        ProgramMissingError: harness programs are not installed.
    """
    slots = build_harness_slots(config, registry)
    tasks = load_tasks(config, registry)
    every = [task for group in tasks.values() for task in group]
    verifiers = build_verifiers(config, registry, (task.verifier for task in every))
    sandbox = build(config.sandbox, registry)
    await _validate(config, verifiers, sandbox, every)
    return Parts(
        slots=slots,
        tasks=tasks,
        verifiers=verifiers,
        sandbox=sandbox,
        engine=engine or build(config.engine, registry),
        trackers=Trackers([build(spec, registry) for spec in config.trackers]),
    )


@asynccontextmanager
async def open_run(
    config: RunConfig,
    registry: Registry,
    run_dir: Path,
    engine: InferenceEngine[Any] | None = None,
) -> AsyncIterator[Run]:
    """Open everything a run needs; leaving the context closes it in the opposite order.

    What can be wrong is found before anything is started.

    Args:
        config: the checked run file.
        registry: where its parts come from.
        run_dir: the run's folder; made when it is not there, resumed when it is.
        engine: used instead of the run file's, and started and stopped here.

    Raises:
        ConfigError: tasks, verifiers or the folder do not fit the run file, or the engine does not
            start.
        ProgramMissingError: harness programs are not installed.
        TemplateError: no renderer bridges the engine's chat template.
    """
    parts = await build_parts(config, registry, engine)
    note_run_file(config, run_dir)
    async with AsyncExitStack() as stack:
        stack.enter_context(logs_to(run_dir))
        reaped = await parts.sandbox.reap()
        if reaped:
            log.warning("sandboxes_reaped", count=reaped)
        stack.push_async_callback(parts.engine.stop)
        await _start(parts.engine, config)
        stack.push_async_callback(parts.sandbox.stop)
        await _start_sandbox(parts.sandbox, config)
        proxy = Proxy(parts.engine, _proxy_settings(config))
        stack.push_async_callback(proxy.stop)
        await parts.sandbox.admit(await proxy.start(parts.sandbox.proxy_host, config.rollout.port))
        stack.callback(parts.trackers.finish)
        parts.trackers.start(run_dir, config.raw)
        store = RunStore(run_dir)
        yield Run(
            config=config,
            registry=registry,
            run_dir=run_dir,
            engine=parts.engine,
            proxy=proxy,
            runner=Runner(
                proxy=proxy,
                sandbox=parts.sandbox,
                verifiers=parts.verifiers,
                store=store,
                settings=_runner_settings(config),
            ),
            slots=parts.slots,
            store=store,
            trackers=parts.trackers,
            tasks=parts.tasks,
        )


async def collect_rollouts(
    run: Run,
    tasks: Sequence[Task],
    stage: str,
    samples: int = 1,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Run every task in every harness `samples` times, in that order; see `collect_pairs`."""
    pairs = [(task, slot) for task in tasks for slot in run.slots]
    return await collect_pairs(run, pairs, stage, samples, on_done)


async def collect_pairs(
    run: Run,
    pairs: Sequence[Pair],
    stage: str,
    samples: int = 1,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Run each task in its harness `samples` times; finished ones come from the disk.

    Returns rollouts in the order of the pairs; refills come last in their group.
    """
    requests = [
        RolloutRequest(task=task, slot=slot, sample=sample, stage=stage)
        for task, slot in pairs
        for sample in range(samples)
    ]
    config = run.config
    return await collect_groups(
        run.runner, requests, config.rollout.concurrency, on_done, config.pruning
    )


async def collect_once(
    run: Run,
    pairs: Sequence[Pair],
    stage: str,
    samples: int = 1,
    on_done: Callable[[Rollout], None] | None = None,
) -> list[Rollout]:
    """Collect as `collect_pairs` does, but a stage that was collected to its end stays as it was.

    Nothing of it is run anew, failures included: the policy may be another one by now.
    """
    names = run.store.collected(stage)
    if names is not None:
        return [run.store.load(name) for name in names]
    rollouts = await collect_pairs(run, pairs, stage, samples, on_done)
    run.store.note_collected(stage, rollouts)
    return rollouts


async def evaluate(
    run: Run,
    tasks: Sequence[Task],
    stage: str,
    samples: int = 1,
    on_done: Callable[[Rollout], None] | None = None,
) -> dict[str, dict[str, list[float]]]:
    """Return the scores by harness label and task id.

    Excluded rollouts have no score here; a task of which nothing is left is absent.
    """
    pairs = [(task, slot) for task in tasks for slot in run.slots]
    rollouts = await collect_once(run, pairs, stage, samples, on_done)
    scores: dict[str, dict[str, list[float]]] = {slot.label: {} for slot in run.slots}
    for rollout in rollouts:
        if rollout.usable:
            by_task = scores[rollout.key.harness]
            by_task.setdefault(rollout.key.task_id, []).append(rollout.reward)
    return scores


def load_rollouts(run_dir: Path) -> list[Rollout]:
    """Return all finished rollouts of a run folder.

    Raises:
        ConfigError: it holds none.
    """
    store = RunStore(run_dir)
    rollouts = [store.load(rollout_id) for rollout_id in store.finished()]
    if not rollouts:
        raise ConfigError(str(run_dir), [("rollouts", "no finished rollout in this folder")])
    return rollouts


def load_set_aside(run_dir: Path) -> list[Rollout]:
    """Return the attempts of a run folder that failed and were repeated."""
    store = RunStore(run_dir)
    return [store.load(name) for name in store.set_aside()]


def pruning_of(run_dir: Path) -> Pruning:
    """Return how the run of a folder prunes; the defaults where no run file is noted."""
    file = run_dir / RUN_FILE
    raw = orjson.loads(file.read_bytes()) if file.exists() else {}
    return PruningTable.model_validate(raw.get("pruning", {})).pruning()


def audit_run(run_dir: Path) -> dict[str, HarnessAudit]:
    """Return the audit of a run folder by harness label, log-prob gap included.

    Raises:
        ConfigError: it holds no finished rollout.
    """
    metrics = run_dir / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines() if metrics.exists() else []
    steps = [orjson.loads(line) for line in lines]
    audits = audit(load_rollouts(run_dir), pruning_of(run_dir))
    for label, found in audits.items():
        key = f"logp_gap/mean_abs/{label}"
        gaps = [step[key] for step in steps if key in step]
        audits[label] = replace(found, logp_gap=fmean(gaps) if gaps else None)
    return audits


async def _validate(
    config: RunConfig,
    verifiers: Mapping[str, Verifier[Any]],
    sandbox: SandboxBackend[Any],
    tasks: Sequence[Task],
) -> None:
    problems: list[tuple[str, str]] = []
    for task in tasks:
        problems += _limit_problems(config, task)
        try:
            await verifiers[task.verifier].validate(task)
            sandbox.validate(task)
        except Exception as exc:  # plugin code
            problems.append((f"task {task.id}", describe(exc)))
    if problems:
        raise ConfigError(str(config.path), problems[:20])


def _limit_problems(config: RunConfig, task: Task) -> list[tuple[str, str]]:
    """Return what is wrong with a task's limits, alone and in the place of the harnesses' own."""
    problems: list[tuple[str, str]] = []
    where = f"task {task.id}: limits"
    if check(LimitsTable, dict(task.limits), where, problems) is None:
        return problems
    merged = [overridden(spec.limits, task.limits) for spec in config.harnesses]
    return [(where, problem) for problem in sorted({*map(nesting_problem, merged)} - {""})]


async def _start(engine: InferenceEngine[Any], config: RunConfig) -> None:
    try:
        with boundary(EngineError, f"engine {engine.name!r} does not start"):
            await engine.start()
    except EngineError as exc:
        log.error("engine_start_failed", engine=engine.name, exc_info=True)
        raise ConfigError(str(config.path), [("engine", str(exc))]) from exc


async def _start_sandbox(sandbox: SandboxBackend[Any], config: RunConfig) -> None:
    try:
        with boundary(SandboxError, f"sandbox {sandbox.name!r} does not start"):
            await sandbox.start()
    except SandboxError as exc:
        log.error("sandbox_start_failed", sandbox=sandbox.name, exc_info=True)
        raise ConfigError(str(config.path), [("sandbox", str(exc))]) from exc


def _runner_settings(config: RunConfig) -> RunnerSettings:
    table = config.rollout
    return RunnerSettings(
        max_infra_retries=table.max_infra_retries,
        max_refills=table.max_refills,
        on_limit=table.on_limit,
        grade_limit_s=table.grade_limit_s,
    )


def _proxy_settings(config: RunConfig) -> ProxySettings:
    return ProxySettings(
        temperature=config.sampling.temperature,
        max_tokens=config.sampling.max_tokens,
        render_rules=config.rollout.render_rules,
    )
