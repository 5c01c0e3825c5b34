"""The training loop; it reads top to bottom. Every part arrives built and is called once a step.

roll out -> group -> advantages -> loss -> one update -> publish weights -> next step
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog
import torch
import transformers
from rich.console import Console

from mixharness.assemble import build
from mixharness.config import RunConfig
from mixharness.errors import ConfigError, EngineError
from mixharness.interrupt import run_interruptible
from mixharness.logs import logs_to
from mixharness.optimizer import Optimizer
from mixharness.plugins import Registry
from mixharness.runs import Run, collect_rollouts, evaluate, open_run
from mixharness.types import Rollout, Task
from mixharness.viewer import RunProgress, summary_table
from mixharness.weights_rules import rules_of_run
from mixharness_trainer.before import check, claim
from mixharness_trainer.checkpoint import save_checkpoint
from mixharness_trainer.cold_start import ColdStart, cold_start
from mixharness_trainer.groups import group_rollouts
from mixharness_trainer.policy import Policy
from mixharness_trainer.self_test import SelfTestError, self_test
from mixharness_trainer.step_metrics import step_metrics
from mixharness_trainer.summary import Outcome, Scores, write_summary
from mixharness_trainer.tables import EvalTable, PolicyTable, TrainerTable
from mixharness_trainer.update import UpdateSettings, update
from mixharness_trainer.weights import publish

log = structlog.get_logger()


def run_training(config: RunConfig, registry: Registry, run_dir: Path) -> None:
    """Train, and show the result in the terminal."""
    transformers.logging.disable_progress_bar()  # the run has one of its own
    console = Console()
    summary = run_interruptible(train(config, registry, run_dir))
    console.print(summary_table(summary))
    console.print(f"{run_dir / 'report.html'}", highlight=False)


async def train(config: RunConfig, registry: Registry, run_dir: Path) -> dict[str, Any]:
    """Train as the run file says; return what is also written to `summary.json`.

    What can be wrong is found first; then an earlier run in the folder is set aside.

    Raises:
        ConfigError: the run file asks for what cannot be done; nothing was started or moved.
        ProgramMissingError: harness programs are not installed; likewise.
    """
    await check(config, registry)
    claim(run_dir)
    with logs_to(run_dir):
        return await _train(config, registry, run_dir)


async def _train(config: RunConfig, registry: Registry, run_dir: Path) -> dict[str, Any]:
    started = time.monotonic()
    torch.manual_seed(config.seed)
    settings: TrainerTable = config.table("trainer")  # type: ignore[assignment]
    assert config.optimizer is not None  # `check` has seen it
    optimizer: Optimizer[Any] = build(config.optimizer, registry)
    labels = [spec.label for spec in config.harnesses]
    with RunProgress(total_steps=settings.steps, harnesses=labels) as progress:
        folder = await _policy_folder(config, registry, run_dir, progress)
        policy = Policy.load(folder, lr=settings.lr, weight_decay=settings.weight_decay)
        policy.equip(optimizer, folder)
        async with open_run(_with_model(config, folder), registry, run_dir) as run:
            await _prove(run, policy)
            history: list[dict[str, Any]] = []
            before = await _held_out(run, "eval-before", progress)
            progress.stage(optimizer.name)
            batches = task_batches(
                run.tasks["train"],
                size=settings.tasks_per_step,
                steps=settings.steps,
                seed=config.seed,
            )
            for step, tasks in enumerate(batches, start=1):
                metrics = await _step(run, policy, optimizer, tasks, step, _counter(progress))
                history.append(metrics)
                run.trackers.log(metrics, step)
                progress.step(metrics)
                if step % settings.checkpoint_every == 0 or step == settings.steps:
                    rules = rules_of_run(config, registry)
                    save_checkpoint(policy, run_dir / "checkpoint", render_rules=rules)
            after = await _held_out(run, "eval-after", progress)
    wall_s = time.monotonic() - started
    outcome = Outcome(before=before, after=after, history=history, wall_s=wall_s)
    return write_summary(run_dir, policy, outcome)


async def _step(
    run: Run,
    policy: Policy,
    optimizer: Optimizer[Any],
    tasks: Sequence[Task],
    step: int,
    on_done: Callable[[Rollout], None],
) -> dict[str, Any]:
    """Take one step: every task in every harness, one update, new weights in the engine."""
    settings: TrainerTable = run.config.table("trainer")  # type: ignore[assignment]
    began = time.monotonic()
    rollouts = await collect_rollouts(
        run, tasks, f"step-{step:04d}", settings.group_size, on_done=on_done
    )
    collected = time.monotonic()
    for rollout in rollouts:
        run.trackers.log_rollout(rollout, step)
    grouped = group_rollouts(rollouts, optimizer.min_group_size, run.config.pruning)
    learned: dict[str, Any] = {}
    if grouped.groups:
        learned = await anyio.to_thread.run_sync(
            partial(update, policy, grouped.groups, optimizer, _update_settings(settings))
        )
        learned["weights_taken"] = await _publish(run, policy, version=step)
    return {
        "step": step,
        "stage": optimizer.name,
        **learned,
        **step_metrics(run.slots, rollouts, grouped, learned),
        "policy_version": run.engine.policy_version,
        "time/rollout_s": round(collected - began, 3),
        "time/update_s": round(time.monotonic() - collected, 3),
    }


async def _prove(run: Run, policy: Policy) -> None:
    """Refuse to train on an engine that says what the trainer does not find true.

    Raises:
        ConfigError: with what differs.
    """
    if run.engine.fake_logprobs:
        return
    try:
        await self_test(policy, run.engine)
    except SelfTestError as exc:
        raise ConfigError(str(run.config.path), [("engine", str(exc))]) from exc


async def _publish(run: Run, policy: Policy, version: int) -> bool:
    """Give the engine the new weights, and say whether it took them.

    A dead engine does not; it is counted in the rollouts that it fails, and the run goes on.
    """
    try:
        await publish(policy, run.engine, run.proxy.gate, run.run_dir / "weights", version=version)
    except EngineError as exc:
        log.error("weights_not_taken", policy_version=version, error=str(exc))
        return False
    return True


async def _policy_folder(
    config: RunConfig, registry: Registry, run_dir: Path, progress: RunProgress
) -> Path:
    """Return the folder of the policy to train: the run file's, or a cold-started one."""
    table: PolicyTable = config.table("policy")  # type: ignore[assignment]
    if table.model:
        return Path(table.model)
    progress.stage("cold start")
    return await cold_start(
        ColdStart(
            config=config,
            registry=registry,
            table=config.table("cold_start"),  # type: ignore[arg-type]
            policy=table,
            run_dir=run_dir,
            on_done=_counter(progress),
        )
    )


async def _held_out(run: Run, stage: str, progress: RunProgress) -> Scores:
    """Score the held-out tasks in every harness; nothing when a script does the sampling."""
    table: EvalTable = run.config.table("eval")  # type: ignore[assignment]
    if run.engine.fake_logprobs or not run.tasks["eval"]:
        return {}
    progress.stage(stage)
    return await evaluate(run, run.tasks["eval"], stage, table.samples, _counter(progress))


def _with_model(config: RunConfig, folder: Path) -> RunConfig:
    """Point the engine at the policy: an engine config key left empty means "the run's"."""
    spec, policy = config.engine, config.table("policy")
    keys = {"model": str(folder), "tokenizer": str(folder), "seed": config.seed}
    keys |= policy.model_dump(exclude={"model"})
    own = spec.part_config
    unset = type(own).model_fields.keys() - own.model_fields_set
    update_keys = {key: value for key, value in keys.items() if key in unset}
    return replace(config, engine=replace(spec, part_config=own.model_copy(update=update_keys)))


def task_batches(
    tasks: Sequence[Task], *, size: int, steps: int, seed: int
) -> Iterator[list[Task]]:
    """Yield each step's tasks, none twice in a step: a new order of all each time all are used.

    Args:
        tasks: at least `size` of them.
        size: tasks per step.
        steps: how many batches.
        seed: decides the orders.
    """
    rng = random.Random(seed)
    queue: list[Task] = []
    for _ in range(steps):
        batch: list[Task] = []
        while len(batch) < size:
            if not queue:
                order = rng.sample(tasks, len(tasks))
                # Taken from the end: what this step has already comes last.
                queue = sorted(order, key=lambda task: task not in batch)
            batch.append(queue.pop())
        yield batch


def _update_settings(table: TrainerTable) -> UpdateSettings:
    return UpdateSettings(
        max_grad_norm=table.max_grad_norm,
        minibatches=table.minibatches,
        epochs=table.epochs,
        loss_normalization=table.loss_normalization,
        drop_unanimous=table.drop_unanimous,
        max_tokens_per_batch=table.max_tokens_per_batch,
    )


def _counter(progress: RunProgress) -> Callable[[Rollout], None]:
    return lambda rollout: progress.add_calls(len(rollout.calls))
