"""What is looked at before a training run: its run file and its folder. The loop is train.py's."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mixharness.config import RunConfig
from mixharness.errors import ConfigError
from mixharness.logs import EVENTS_FILE
from mixharness.plugins import Registry
from mixharness.runs import Parts, build_parts
from mixharness_trainer.composition import problems as composition_problems
from mixharness_trainer.tables import PolicyTable, TrainerTable

Problem = tuple[str, str]

FREE_TO_CHANGE = ("tracker", "rollout.concurrency", "rollout.max_infra_retries", "rollout.port")
"""Keys of the run file that a resumed run may have changed: no weight depends on them."""


async def check(config: RunConfig, registry: Registry) -> None:
    """Refuse what cannot be trained, or would train on nonsense. Starts and moves nothing.

    Raises:
        ConfigError: with every problem.
        ProgramMissingError: harness programs are not installed.
    """
    parts = await build_parts(config, registry)
    problems = [
        *_optimizer_problems(config, registry, parts),
        *_task_problems(config, parts),
        *_policy_problems(config, parts),
    ]
    if problems:
        raise ConfigError(str(config.path), problems)


def claim(run_dir: Path) -> None:
    """Make the run's folder; an earlier run in it is set aside as `<name>~1`, `<name>~2`, ...

    Raises:
        ConfigError: the folder holds something that is no run, or a run that goes on.
    """
    if run_dir.exists() and not (run_dir / EVENTS_FILE).exists():
        if not run_dir.is_dir() or any(run_dir.iterdir()):
            message = "holds something that is no run; choose another --run-dir"
            raise ConfigError("the command line", [(str(run_dir), message)])
    elif run_dir.exists():
        with alone(run_dir):
            run_dir.rename(_free_name(run_dir))
    run_dir.mkdir(parents=True, exist_ok=True)


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """Keep other trainings out of a run's folder, until this process ends at the latest.

    Raises:
        ConfigError: another one is in it.
    """
    with (run_dir / EVENTS_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another process trains in this folder; choose another --run-dir, or end it"
            raise ConfigError("the command line", [(str(run_dir), message)]) from None
        yield


def find_run(run_dir: Path) -> None:
    """Refuse a folder in which there is no run to resume.

    Raises:
        ConfigError: there is none.
    """
    if not (run_dir / EVENTS_FILE).exists():
        message = f"no run in {run_dir} to go on with; start one without --resume"
        raise ConfigError("the command line", [("--resume", message)])


def _optimizer_problems(config: RunConfig, registry: Registry, parts: Parts) -> list[Problem]:
    if config.optimizer is None:
        names = ", ".join(registry.names("optimizer"))
        return [("optimizer", f"required: a table [optimizer] with a name ({names})")]
    name = config.optimizer.name
    if not (parts.engine.fake_logprobs and registry.get("optimizer", name).uses_logprobs):
        return []
    message = (
        f'"{name}" needs real log-probs, but engine "{parts.engine.name}" makes them up; '
        'use the optimizer "sft", or an engine that samples'
    )
    return [("optimizer.name", message)]


def _task_problems(config: RunConfig, parts: Parts) -> list[Problem]:
    settings: TrainerTable = config.table("trainer")  # type: ignore[assignment]
    there = len(parts.tasks["train"])
    if not there:
        return [("task_source", 'nothing to train on: none has use = "train"')]
    if settings.max_staleness and settings.resample_zero_variance:
        message = "draws groups within a step, which does not wait for them with max_staleness > 0"
        return [("trainer.resample_zero_variance", message)]
    return composition_problems(parts.slots, settings.tasks_per_step, there)


def _policy_problems(config: RunConfig, parts: Parts) -> list[Problem]:
    table: PolicyTable = config.table("policy")  # type: ignore[assignment]
    if table.model:
        if (Path(table.model) / "config.json").is_file():
            return []
        return [
            ("policy.model", f"{table.model!r} is no Hugging Face folder: no config.json there")
        ]
    problems: list[Problem] = []
    if "cold_start" not in config.tables:
        message = "required: a table [cold_start] with a `script`, or `model` in [policy]"
        problems.append(("cold_start", message))
    if not parts.tasks["cold_start"]:
        problems.append(("task_source", '[cold_start] needs tasks: none has use = "cold_start"'))
    return problems


def _free_name(run_dir: Path) -> Path:
    """Return the first of `<name>~1`, `<name>~2`, ... that is not taken."""
    number = 1
    while (earlier := run_dir.with_name(f"{run_dir.name}~{number}")).exists():
        number += 1
    return earlier
