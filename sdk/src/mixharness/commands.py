"""What `mixharness rollout` and `mixharness eval` do, from a checked run file to a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mixharness.config import RunConfig
from mixharness.errors import ConfigError
from mixharness.exclusions import Exclusion, exclusions
from mixharness.plugins import Registry
from mixharness.runs import Run, collect_rollouts, load_set_aside, open_run
from mixharness.tree.prune import DEFAULT_PRUNING, Pruning
from mixharness.types import Rollout, Task
from mixharness.weights_rules import check_rules, rules_of_run

Done = Callable[[int, int], None]
"""Called with (finished, all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSummary:
    """What a collection came to in one harness."""

    rollouts: int
    calls: int
    score: float | None
    """Mean over usable rollouts; None when there are none."""
    failures: Mapping[str, int]
    """By kind."""
    exclusion: Exclusion


async def rollout_run(
    config: RunConfig,
    registry: Registry,
    run_dir: Path,
    samples: int,
    done: Done,
    *,
    limit: int | None = None,
) -> dict[str, HarnessSummary]:
    """Collect rollouts of the first `limit` training tasks; return a summary per harness label.

    Raises:
        ConfigError: the run file has no task source for training, or see `open_run`.
    """
    _require(config, "train")
    async with open_run(config, registry, run_dir) as run:
        tasks = run.tasks["train"][:limit]
        rollouts = await _collect(run, tasks, "rollout", samples, done)
        return summarize(rollouts, load_set_aside(run_dir), config.pruning)


async def eval_run(
    config: RunConfig,
    registry: Registry,
    run_dir: Path,
    weights: Path | None,
    samples: int,
    done: Done,
    *,
    force: bool = False,
) -> dict[str, HarnessSummary]:
    """Score the evaluation tasks, with `weights` when given; return a summary per harness label.

    Raises:
        ConfigError: the run file has no task source for evaluation, the weights were trained under
            other render rules (unless `force`), or see `open_run`.
    """
    _require(config, "eval")
    if weights is not None and not force:
        check_rules(weights, rules_of_run(config, registry))
    async with open_run(config, registry, run_dir) as run:
        if weights is not None:
            await run.engine.load_weights(weights, run.engine.policy_version)
        rollouts = await _collect(run, run.tasks["eval"], "eval", samples, done)
        return summarize(rollouts, load_set_aside(run_dir), config.pruning)


def summarize(
    rollouts: Sequence[Rollout], retried: Sequence[Rollout] = (), pruning: Pruning = DEFAULT_PRUNING
) -> dict[str, HarnessSummary]:
    """Return the summary of each harness label, in alphabetical order; see `exclusions`."""
    return {
        label: _summary([r for r in rollouts if r.key.harness == label], exclusion)
        for label, exclusion in exclusions(rollouts, retried, pruning).items()
    }


def _summary(rollouts: Sequence[Rollout], exclusion: Exclusion) -> HarnessSummary:
    scores = [rollout.reward for rollout in rollouts if rollout.usable]
    return HarnessSummary(
        rollouts=len(rollouts),
        calls=sum(len(rollout.calls) for rollout in rollouts),
        score=fmean(scores) if scores else None,
        failures=Counter(r.failure.kind.value for r in rollouts if r.failure),
        exclusion=exclusion,
    )


async def _collect(
    run: Run, tasks: Sequence[Task], stage: str, samples: int, done: Done
) -> list[Rollout]:
    total = len(tasks) * len(run.slots) * samples
    finished = 0

    def on_done(rollout: Rollout) -> None:
        nonlocal finished
        finished += 1
        run.trackers.log_rollout(rollout, 0)
        done(finished, max(finished, total))  # refills come on top

    done(0, total)
    return await collect_rollouts(run, tasks, stage, samples, on_done)


def _require(config: RunConfig, use: str) -> None:
    if not any(spec.use == use for spec in config.task_sources):
        problem = ("task_source", f'required: a [[task_source]] with use = "{use}"')
        raise ConfigError(str(config.path), [problem])
