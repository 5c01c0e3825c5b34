"""The training loop; it reads top to bottom. Every part arrives built and is called once a step.

roll out -> group -> advantages -> loss -> one update -> publish weights -> next step
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
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
from mixharness.run_folder import note_run_file
from mixharness.runs import Run, evaluate, open_run
from mixharness.types import Rollout
from mixharness.viewer import RunProgress, summary_table
from mixharness.weights_rules import rules_of_run
from mixharness_trainer.before import FREE_TO_CHANGE, alone, check, claim, find_run
from mixharness_trainer.checkpoint import (
    LoopState,
    load_checkpoint,
    remove_unfinished,
    save_checkpoint,
)
from mixharness_trainer.cold_start import ColdStart, cold_start
from mixharness_trainer.collecting import Collector, Wanted, collecting, planned_steps
from mixharness_trainer.composition import step_pairs
from mixharness_trainer.lora import Lora
from mixharness_trainer.policy import Policy
from mixharness_trainer.self_test import SelfTestError, self_test
from mixharness_trainer.step_metrics import step_metrics
from mixharness_trainer.summary import Outcome, Scores, write_summary
from mixharness_trainer.tables import EvalTable, PolicyTable, TrainerTable
from mixharness_trainer.update import UpdateSettings, update
from mixharness_trainer.weights import publish

log = structlog.get_logger()

CHECKPOINT = "checkpoint"
"""Name in the run folder."""


def run_training(
    config: RunConfig, registry: Registry, run_dir: Path, *, resume: bool = False
) -> None:
    """Train, and show the result in the terminal."""
    transformers.logging.disable_progress_bar()  # the run has one of its own
    console = Console()
    summary = run_interruptible(train(config, registry, run_dir, resume=resume))
    console.print(summary_table(summary))
    console.print(f"{run_dir / 'report.html'}", highlight=False)


async def train(
    config: RunConfig, registry: Registry, run_dir: Path, *, resume: bool = False
) -> dict[str, Any]:
    """Train as the run file says; return what is also written to `summary.json`.

    What can be wrong is found first. Then an earlier run in the folder is gone on with where it was
    killed, or set aside. A resumed run takes the steps since its last checkpoint again, on the
    rollouts that it finds: only what was not finished is run (rule 10).

    Raises:
        ConfigError: the run file asks for what cannot be done, or is another than the run's that is
            to be resumed; nothing was started or moved.
        ProgramMissingError: harness programs are not installed; likewise.
    """
    await check(config, registry)
    if resume:
        find_run(run_dir)
    else:
        claim(run_dir)
    with alone(run_dir), logs_to(run_dir):
        note_run_file(config, run_dir, FREE_TO_CHANGE)
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
        policy, done = _begin(config, registry, run_dir, folder)
        policy.equip(optimizer, folder)
        async with open_run(_with_model(config, folder), registry, run_dir) as run:
            await _prove(run, policy)
            history = list(done.history)
            progress.go_on(history)
            before = await _held_out(run, "eval-before", progress)
            progress.stage(optimizer.name)
            async with collecting(_wanted(run, optimizer, progress)) as collector:
                for step in range(done.step + 1, settings.steps + 1):
                    metrics = await _step(run, policy, optimizer, collector, step)
                    history.append(metrics)
                    run.trackers.log(metrics, step)
                    progress.step(metrics)
                    if step % settings.checkpoint_every == 0 or step == settings.steps:
                        wall_s = done.wall_s + time.monotonic() - started
                        loop = LoopState(step=step, history=history, wall_s=wall_s)
                        rules = rules_of_run(config, registry)
                        save = partial(save_checkpoint, render_rules=rules, loop=loop)
                        await anyio.to_thread.run_sync(save, policy, run_dir / CHECKPOINT)
            after = await _held_out(run, "eval-after", progress)
    wall_s = done.wall_s + time.monotonic() - started
    outcome = Outcome(before=before, after=after, history=history, wall_s=wall_s)
    return write_summary(run_dir, policy, outcome)


def _wanted(run: Run, optimizer: Optimizer[Any], progress: RunProgress) -> Wanted:
    settings: TrainerTable = run.config.table("trainer")  # type: ignore[assignment]
    plan = step_pairs(
        run.tasks["train"],
        run.slots,
        size=settings.tasks_per_step,
        steps=planned_steps(settings),
        seed=run.config.seed,
    )
    return Wanted(run=run, optimizer=optimizer, plan=list(plan), on_done=_counter(progress))


async def _step(
    run: Run, policy: Policy, optimizer: Optimizer[Any], collector: Collector, step: int
) -> dict[str, Any]:
    """Take one step: its groups, one update, new weights in the engine."""
    settings: TrainerTable = run.config.table("trainer")  # type: ignore[assignment]
    torch.manual_seed(random.Random(f"{run.config.seed}/{step}").getrandbits(63))
    began = time.monotonic()
    batch = await collector.take(step)
    collected = time.monotonic()
    for rollout in batch.rollouts:
        run.trackers.log_rollout(rollout, step)
    learned: dict[str, Any] = {}
    if batch.grouped.groups:
        learned = await anyio.to_thread.run_sync(
            partial(update, policy, batch.grouped.groups, optimizer, _update_settings(settings))
        )
        learned |= await _publish(run, policy, version=step)
    return {
        "step": step,
        "stage": optimizer.name,
        **learned,
        **step_metrics(run.slots, batch.rollouts, batch.grouped, learned),
        **batch.figures,
        "policy_version": run.engine.policy_version,
        "time/rollout_s": round(collected - began, 3),
        "time/update_s": round(time.monotonic() - collected, 3),
    }


def _begin(
    config: RunConfig, registry: Registry, run_dir: Path, folder: Path
) -> tuple[Policy, LoopState]:
    """Return the policy to train and how far it is: as the last checkpoint has it, or new.

    Raises:
        ConfigError: there is a checkpoint, and the policy would read other prompts than before.
    """
    checkpoint, rules = run_dir / CHECKPOINT, rules_of_run(config, registry)
    if not checkpoint.exists():
        settings: TrainerTable = config.table("trainer")  # type: ignore[assignment]
        policy = Policy.load(
            folder, lr=settings.lr, weight_decay=settings.weight_decay, lora=_lora(config)
        )
        return policy, LoopState()
    remove_unfinished(checkpoint)
    policy, state = load_checkpoint(checkpoint, base=folder, lora=_lora(config))
    if state.render_rules != rules:
        message = f"the run had {state.render_rules}, what is installed has {rules}"
        raise ConfigError(str(config.path), [("rollout.render_rules", message)])
    log.info("run_resumed", step=state.loop.step, policy_version=state.policy_version)
    return policy, state.loop


def _lora(config: RunConfig) -> Lora | None:
    table: PolicyTable = config.table("policy")  # type: ignore[assignment]
    return Lora(rank=table.lora_rank, alpha=table.lora_alpha) if table.lora_rank else None


async def _prove(run: Run, policy: Policy) -> None:
    """Hand an engine the weights of a resumed run, and refuse one that says what is not true.

    Raises:
        ConfigError: it does not take the weights, or what it says and the trainer does not find.
    """
    taken = not policy.version or (await _publish(run, policy, policy.version))["weights_taken"]
    if not taken:
        message = "does not take the weights that the run had; see events.jsonl"
        raise ConfigError(str(run.config.path), [("engine", message)])
    if run.engine.fake_logprobs:
        return
    try:
        await self_test(policy, run.engine)
    except SelfTestError as exc:
        raise ConfigError(str(run.config.path), [("engine", str(exc))]) from exc


async def _publish(run: Run, policy: Policy, version: int) -> dict[str, Any]:
    """Give the engine the new weights; say whether it took them, in what time, and how many bytes.

    A dead engine does not; it is counted in the rollouts that it fails, and the run goes on.
    """
    try:
        folder, gate = run.run_dir / "weights", run.proxy.gate
        done = await publish(policy, run.engine, gate, folder, version=version)
    except EngineError as exc:
        log.error("weights_not_taken", policy_version=version, error=str(exc))
        return {"weights_taken": False}
    return {
        "weights_taken": True,
        "time/sync_s": done.seconds,
        "sync/bytes": done.num_bytes,
    }


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
    unwanted = stage == "eval-before" and not table.before
    if unwanted or run.engine.fake_logprobs or not run.tasks["eval"]:
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


def _update_settings(table: TrainerTable) -> UpdateSettings:
    return UpdateSettings(
        max_grad_norm=table.max_grad_norm,
        minibatches=table.minibatches,
        epochs=table.epochs,
        loss_normalization=table.loss_normalization,
        drop_unanimous=table.drop_unanimous,
        gradient_cosine_every=table.gradient_cosine_every,
        max_tokens_per_batch=table.max_tokens_per_batch,
    )


def _counter(progress: RunProgress) -> Callable[[Rollout], None]:
    return lambda rollout: progress.add_calls(len(rollout.calls))
