"""From a checked run file to built parts. Nothing is started here; runs.py opens what is built."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from mixharness.config import PartSpec, RunConfig
from mixharness.errors import ConfigError, PluginError, ProgramMissingError
from mixharness.harness import Harness, Program
from mixharness.plugins import Registry, describe
from mixharness.rollout.cache import cache_dir
from mixharness.rollout.types import HarnessSlot
from mixharness.sandbox import SandboxBackend
from mixharness.types import Task
from mixharness.verifier import Verifier

_SHOWN = 20
"""Problems of one task source that are listed."""


def build(spec: PartSpec, registry: Registry) -> Any:
    """Build a part from its spec; it is an instance of its kind's base class.

    Raises:
        PluginError: its constructor raised.
    """
    cls = registry.get(spec.kind, spec.name)
    try:
        return cls(spec.part_config)
    except Exception as exc:  # plugin code
        raise PluginError(f"{spec.kind} {spec.name!r} cannot be built: {describe(exc)}") from exc


def build_harness_slots(config: RunConfig, registry: Registry) -> list[HarnessSlot]:
    """Build the harnesses of a run and look up their programs.

    Raises:
        ProgramMissingError: naming every missing program and the command that installs it.
    """
    slots: list[HarnessSlot] = []
    missing: list[str] = []
    for spec in config.harnesses:
        harness: Harness[Any] = build(spec, registry)
        try:
            program = harness.find(cache_dir())
        except ProgramMissingError as exc:
            missing.append(str(exc))
            continue
        slots.append(
            HarnessSlot(
                label=spec.label,
                harness=harness,
                program=program,
                limits=spec.limits,
                weight=spec.weight,
                groups=spec.groups,
            )
        )
    if missing:
        raise ProgramMissingError("\n".join(dict.fromkeys(missing)))
    return slots


def build_verifiers(
    config: RunConfig, registry: Registry, names: Iterable[str]
) -> dict[str, Verifier[Any]]:
    """Build the verifiers that tasks name: from `[[verifier]]` by label, else with defaults.

    Raises:
        ConfigError: a name is no verifier, or its defaults do not suffice; all at once.
    """
    specs = {spec.label: spec for spec in config.verifiers}
    problems: list[tuple[str, str]] = []
    for name in sorted(set(names) - specs.keys()):
        cls = registry.find("verifier", name)
        if cls is None:
            problems.append(("verifier", f"a task has {registry.unknown('verifier', name)}"))
            continue
        try:
            defaults = cls.config_type()
        except ValidationError as exc:
            keys = ", ".join(".".join(map(str, error["loc"])) for error in exc.errors())
            problems.append(("verifier", f"{name!r} needs a [[verifier]] table with {keys}"))
            continue
        specs[name] = PartSpec(kind="verifier", name=name, label=name, part_config=defaults)
    if problems:
        raise ConfigError(str(config.path), problems)
    return {label: build(spec, registry) for label, spec in specs.items()}


def load_tasks(config: RunConfig, registry: Registry) -> dict[str, list[Task]]:
    """Read all task sources; return the tasks by use: `train`, `eval`, `cold_start`.

    Raises:
        ConfigError: a source raised, or two tasks of one use have the same id.
    """
    tasks: dict[str, list[Task]] = {"train": [], "eval": [], "cold_start": []}
    problems: list[tuple[str, str]] = []
    for i, spec in enumerate(config.task_sources):
        where = f"task_source.{i}"
        try:
            found = list(build(spec, registry).tasks())
        except Exception as exc:  # plugin code
            each = exc.exceptions if isinstance(exc, ExceptionGroup) else (exc,)
            problems += [(where, describe(error)) for error in each[:_SHOWN]]
            if len(each) > _SHOWN:
                problems.append((where, f"... and {len(each) - _SHOWN} more"))
            continue
        known = {task.id for task in tasks[spec.use]}
        twice = sorted({task.id for task in found if task.id in known})
        if twice:
            problems.append((where, f"{spec.use} tasks given before: {', '.join(twice[:5])}"))
        tasks[spec.use] += found
    if problems:
        raise ConfigError(str(config.path), problems)
    return tasks


async def install_program(name: str, registry: Registry) -> Program | None:
    """Install the program of a harness with its default config; None when it needs none.

    Raises:
        PluginError: there is no such harness, its plugin is broken, or installing failed.
    """
    harness: Harness[Any] = build(_default_spec("harness", name, registry), registry)
    try:
        return await harness.install(cache_dir())
    except Exception as exc:  # plugin code
        raise PluginError(f"harness {name!r} cannot be installed: {describe(exc)}") from exc


async def reap_sandboxes(name: str, registry: Registry) -> int:
    """Remove what killed runs left in a sandbox backend; return how many there were.

    Raises:
        PluginError: there is no such backend, or its plugin is broken.
    """
    spec = _default_spec("sandbox", name, registry)
    backend: SandboxBackend[Any] = build(spec, registry)
    return await backend.reap()


def _default_spec(kind: str, name: str, registry: Registry) -> PartSpec:
    cls = registry.get(kind, name)
    return PartSpec(kind=kind, name=name, label=name, part_config=cls.config_type())
