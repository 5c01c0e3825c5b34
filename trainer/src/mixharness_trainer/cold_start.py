"""A policy out of nothing: capture real prompts, train a tokenizer on them, imitate demonstrations.

Everything goes through the run's own harnesses and proxy; only the sampling is scripted. The loop
that improves the policy afterwards is train.py's.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import anyio
import structlog

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.config import RunConfig
from mixharness.errors import ConfigError
from mixharness.plugins import Registry
from mixharness.rollout.scheduler import collect
from mixharness.rollout.types import RolloutRequest
from mixharness.runs import open_run
from mixharness.tree import prompt_ids
from mixharness.types import Rollout, RolloutGroup
from mixharness_trainer.bpe import train_bpe
from mixharness_trainer.groups import group_rollouts
from mixharness_trainer.optimizers.sft import Sft, SftConfig
from mixharness_trainer.policy import Policy, PolicyShape, new_policy
from mixharness_trainer.tables import ColdStartTable, PolicyTable
from mixharness_trainer.update import UpdateSettings, update

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """What a cold start works from."""

    config: RunConfig
    registry: Registry
    table: ColdStartTable
    policy: PolicyTable
    run_dir: Path
    on_done: Callable[[Rollout], None]
    """Told of each finished rollout."""

    @property
    def folder(self) -> Path:
        """Return where the policy stands once it is finished, in Hugging Face layout."""
        return self.run_dir / "policy"

    @property
    def draft(self) -> Path:
        """Return where it stands until then."""
        return self.run_dir / "cold_start" / "policy"


async def cold_start(job: ColdStart) -> Path:
    """Make the policy and return its folder; one that a run made before it was killed is kept.

    Raises:
        ConfigError: no demonstration is fit to imitate.
    """
    if job.folder.exists():
        return job.folder
    table = job.table
    shape = PolicyShape(
        layers=table.layers,
        hidden=table.hidden,
        heads=table.heads,
        kv_heads=table.kv_heads,
        intermediate=table.intermediate,
        context=job.policy.context,
    )
    texts = await _captured_texts(job)
    tokenizer = await anyio.to_thread.run_sync(
        partial(train_bpe, texts, vocab_size=table.vocab_size)
    )
    new_policy(job.draft, tokenizer, shape, seed=job.config.seed)
    demonstrations = await _play(job, "demonstrations", tokenizer=str(job.draft))
    stop = threading.Event()
    try:
        await anyio.to_thread.run_sync(_imitate, job, demonstrations, stop)
    finally:
        stop.set()  # a cancel leaves the thread behind, and the process would wait for it
    return job.draft.rename(job.folder)


async def _play(
    job: ColdStart, stage: str, *, tokenizer: str = "", limit: int | None = None
) -> list[Rollout]:
    """Run the demonstrator on the cold-start tasks, dealt to the harnesses in turn.

    No task is shown twice: a small policy would learn such demonstrations by heart, mistakes
    included, and be too sure of itself to explore.
    """
    engine = ScriptedEngine(
        ScriptedConfig(
            script=job.table.script,
            tokenizer=tokenizer,
            renderer=job.policy.renderer,
        )
    )
    # A turn is never cut: the byte tokenizer of the capture needs many times the tokens.
    sampling = job.config.sampling.model_copy(update={"max_tokens": engine.config.context})
    config = replace(job.config, sampling=sampling)
    async with open_run(config, job.registry, job.run_dir / "cold_start", engine) as run:
        # The tokenizer is for every harness; demonstrations are of those trained in.
        slots = [slot for slot in run.slots if slot.trained or not tokenizer]
        requests = [
            RolloutRequest(task=task, slot=slot, sample=0, stage=stage)
            for task, slot in zip(run.tasks["cold_start"][:limit], cycle(slots), strict=False)
        ]
        return await collect(run.runner, requests, config.rollout.concurrency, job.on_done)


async def _captured_texts(job: ColdStart) -> list[str]:
    """Return whole conversations as the harnesses make them: what the tokenizer is trained on."""
    rollouts = await _play(job, "capture", limit=job.table.captures)
    tokenizer = byte_tokenizer()
    texts: list[str] = []
    for rollout in rollouts:
        for call in rollout.calls[-1:]:
            ids = [*prompt_ids(rollout.calls, call.id), *call.sampled_ids]
            texts.append(tokenizer.decode(ids, skip_special_tokens=False))
    return texts


def _imitate(job: ColdStart, demonstrations: Sequence[Rollout], stop: threading.Event) -> None:
    """Fine-tune the fresh policy on the demonstrations and save it over itself."""
    table = job.table
    policy = Policy.load(job.draft, lr=table.lr)
    optimizer = Sft(SftConfig(pass_threshold=table.pass_threshold))
    pruning = job.config.pruning
    groups = group_rollouts(demonstrations, optimizer.min_group_size, pruning).groups
    if not groups:
        raise ConfigError(str(job.config.path), [("cold_start", "no demonstration is usable")])
    settings = UpdateSettings()
    batches = list(_batches(groups, table, random.Random(job.config.seed)))
    for number, batch in enumerate(batches):
        if stop.is_set():
            return
        policy.set_lr(table.lr * _schedule(number, len(batches)))
        metrics = update(policy, batch, optimizer, settings)
        log.info("cold_start_update", update=number + 1, of=len(batches), loss=metrics["loss"])
    policy.save(job.draft)


def _schedule(number: int, total: int) -> float:
    """Return the share of the peak learning rate: up over ten updates, level, down from 60 % on."""
    return min(1.0, (number + 1) / 10, (1 - number / total) / 0.4)


def _batches(
    groups: Sequence[RolloutGroup], table: ColdStartTable, rng: random.Random
) -> Iterator[list[RolloutGroup]]:
    """Yield batches of (task, harness) pairs, all of them once an epoch, in a new order each."""
    for _ in range(table.epochs):
        order = rng.sample(groups, len(groups))
        for start in range(0, len(order), table.groups_per_step):
            yield order[start : start + table.groups_per_step]
