"""The run file: TOML in, `RunConfig` out, every problem at once. Starts and builds nothing.

A part's table holds the framework's own keys (`name`, `label`, `weight`, `limits`, `use`), which
are taken off here, and the part's keys, which its config type checks.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mixharness.component import ComponentConfig
from mixharness.errors import ConfigError
from mixharness.harness import Harness
from mixharness.limits import nesting_problem
from mixharness.plugins import Registry, did_you_mean
from mixharness.proxy.rulebook import RENDER_RULES
from mixharness.run_tables import (
    DEFAULTS,
    DISTRIBUTION_CONTRACT,
    FORBIDDEN_SAMPLING,
    KEYS,
    LISTS,
    SINGLES,
    HarnessKeys,
    LimitsTable,
    NameKeys,
    Problem,
    PruningTable,
    RolloutTable,
    SamplingTable,
    TopLevel,
    check,
)
from mixharness.tree.prune import Pruning
from mixharness.types import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpec:
    """One part of a run, checked but not built."""

    kind: str
    name: str
    label: str
    """Of a harness: its name in groups. Of a verifier: the name tasks ask for."""
    part_config: ComponentConfig
    weight: float = 1.0
    groups: int | None = None
    limits: Limits = field(default_factory=Limits)
    use: str = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A checked run file."""

    path: Path
    name: str
    seed: int
    harnesses: tuple[PartSpec, ...]
    task_sources: tuple[PartSpec, ...]
    verifiers: tuple[PartSpec, ...]
    sandbox: PartSpec
    engine: PartSpec
    optimizer: PartSpec | None
    trackers: tuple[PartSpec, ...]
    limits: Limits
    sampling: SamplingTable
    rollout: RolloutTable
    pruning: Pruning
    tables: Mapping[str, BaseModel]
    """Tables that command modules added, e.g. `trainer`; see `table`."""
    raw: Mapping[str, Any]
    """The run file with all overrides, as plain data; what a run folder keeps."""

    def table(self, name: str) -> BaseModel:
        """Return an added table.

        Raises:
            ConfigError: the run file lacks it and it has keys without a default.
        """
        if name not in self.tables:
            raise ConfigError(str(self.path), [(name, f"required: a table [{name}]")])
        return self.tables[name]


def parse_setting(text: str) -> tuple[str, Any]:
    """Split `key.path=value`; the value is TOML, or else taken as a string.

    Raises:
        ConfigError: there is no `=`.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError("--set", [(text, "must look like key.path=value")])
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def load_run_file(
    path: Path | None, registry: Registry, overrides: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read and check a run file.

    Args:
        path: the TOML file; with None the overrides are all there is.
        registry: the parts that are there.
        overrides: dotted key to value, e.g. `{"seed": 1, "harness.0.limits.max_turns": 4}`; an
            entry of a list is named by its number, its label, or its name without one. A new
            `engine.name` (or optimizer, sandbox) drops the other keys of that table. In a list of
            harnesses, a name stands for the entries of that label or name, else for a new one.

    Raises:
        ConfigError: with every problem of the file.
        PluginError: the file names a broken plugin, or a name that two plugins claim.
    """
    problems: list[Problem] = []
    raw = {"name": "rollout"} if path is None else _read(path)
    path = Path("the command line") if path is None else path
    for key, value in (overrides or {}).items():
        _override(raw, key, value, problems)
    config = _Loader(path, raw, registry, problems).load()
    if problems or config is None:
        raise ConfigError(str(path), problems)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(str(path), [("file", f"cannot be read: {exc.strerror}")]) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), [("file", f"is not TOML: {exc}")]) from exc


def _override(raw: dict[str, Any], key: str, value: Any, problems: list[Problem]) -> None:
    *parents, last = key.split(".")
    if last == "name" and len(parents) == 1 and parents[0] in SINGLES:
        table = raw.get(parents[0])
        if not isinstance(table, dict) or table.get("name") != value:
            raw[parents[0]] = {"name": value}
        return
    if key == "harness" and isinstance(value, list):
        value = [entry for each in value for entry in _chosen(raw.get(key), each)]
    at: Any = raw
    for i, step in enumerate([*parents, last]):
        where = ".".join(key.split(".")[: i + 1])
        if isinstance(at, list):
            names = [e.get("label", e.get("name")) for e in at if isinstance(e, dict)]
            if step in names:
                index: Any = names.index(step)
            elif step.isdigit() and int(step) < len(at):
                index = int(step)
            else:
                known = ", ".join(map(str, names))
                problems.append((where, f"no such entry; there are {len(at)}: {known}"))
                return
        elif isinstance(at, dict):
            index = step
            if i < len(parents):
                at.setdefault(step, {})
        else:
            problems.append((where, "cannot be set: the key above it is no table"))
            return
        if i == len(parents):
            at[index] = value
        else:
            at = at[index]


def _chosen(known: Any, name: Any) -> list[Any]:
    """Return the entries that a name stands for; what is no name is an entry itself."""
    if not isinstance(name, str):
        return [name]
    entries = [e for e in known if isinstance(e, dict)] if isinstance(known, list) else []
    by_label = [e for e in entries if e.get("label", e.get("name")) == name]
    by_name = [e for e in entries if e.get("name") == name]
    return by_label or by_name or [{"name": name}]


class _Loader:
    """Checks one run file; a class only because every step shares these four values."""

    def __init__(
        self, path: Path, raw: dict[str, Any], registry: Registry, problems: list[Problem]
    ) -> None:
        self.path = path
        self.raw = raw
        self.registry = registry
        self.problems = problems

    def load(self) -> RunConfig | None:
        tables = self.registry.tables()
        own = ("limits", "sampling", "rollout", "pruning")
        top = {k: v for k, v in self.raw.items() if k not in {*LISTS, *SINGLES, *own, *tables}}
        top.setdefault("name", self.path.stem)
        head = check(TopLevel, top, "", self.problems, more_keys=[*LISTS, *SINGLES, *own, *tables])
        limits = self._limits(self.raw.get("limits", {}), {}, "limits")
        sampling = self._sampling()
        rollout = check(RolloutTable, self.raw.get("rollout", {}), "rollout", self.problems)
        pruning = check(PruningTable, self.raw.get("pruning", {}), "pruning", self.problems)
        lists = {kind: self._list(kind, limits) for kind in LISTS}
        singles = {kind: self._single(kind) for kind in SINGLES}
        self._check_whole(lists, rollout)
        added = self._added(tables)
        sandbox, engine = singles["sandbox"], singles["engine"]
        if not (head and sampling and rollout and pruning and sandbox and engine):
            return None
        return RunConfig(
            path=self.path,
            name=head.name,
            seed=head.seed,
            harnesses=lists["harness"],
            task_sources=lists["task_source"],
            verifiers=lists["verifier"],
            sandbox=sandbox,
            engine=engine,
            optimizer=singles["optimizer"],
            trackers=lists["tracker"],
            limits=limits,
            sampling=sampling,
            rollout=rollout,
            pruning=pruning.pruning(),
            tables=added,
            raw=copy.deepcopy(self.raw),
        )

    def _limits(self, table: Any, base: Mapping[str, Any], where: str) -> Limits:
        checked = check(LimitsTable, table, where, self.problems)
        if checked is None:
            return Limits()
        limits = Limits(**{**base, **checked.model_dump(exclude_unset=True)})
        problem = nesting_problem(limits)
        if problem and (table or not base):  # not again where nothing is overridden
            self.problems.append((where, problem))
        return limits

    def _sampling(self) -> SamplingTable | None:
        table = self.raw.get("sampling", {})
        if isinstance(table, dict):
            for key in sorted(FORBIDDEN_SAMPLING & table.keys()):
                self.problems.append((f"sampling.{key}", DISTRIBUTION_CONTRACT))
            table = {k: v for k, v in table.items() if k not in FORBIDDEN_SAMPLING}
        return check(SamplingTable, table, "sampling", self.problems)

    def _list(self, kind: str, limits: Limits) -> tuple[PartSpec, ...]:
        entries = self.raw.get(kind, DEFAULTS.get(kind, []))
        if not isinstance(entries, list):
            self.problems.append((kind, f"must be a list of tables: write [[{kind}]]"))
            return ()
        specs = (self._part(kind, e, f"{kind}.{i}", limits) for i, e in enumerate(entries))
        return tuple(spec for spec in specs if spec is not None)

    def _single(self, kind: str) -> PartSpec | None:
        entry = self.raw.get(kind, DEFAULTS.get(kind))
        if entry is not None:
            return self._part(kind, entry, kind, Limits())
        if kind == "engine":
            names = ", ".join(self.registry.names(kind))
            self.problems.append((kind, f"required: a table [engine] with a name ({names})"))
        return None

    def _part(self, kind: str, entry: Any, where: str, limits: Limits) -> PartSpec | None:
        if not isinstance(entry, dict):
            self.problems.append((where, f"must be a table, got {entry!r}"))
            return None
        keys_type = KEYS.get(kind, NameKeys)
        framework = {k: v for k, v in entry.items() if k in keys_type.model_fields}
        keys = check(keys_type, framework, where, self.problems)
        if keys is None:
            return None
        cls = self.registry.find(kind, keys.name)
        if cls is None:
            self.problems.append((f"{where}.name", self.registry.unknown(kind, keys.name)))
            return None
        own = {k: v for k, v in entry.items() if k not in framework}
        config = check(cls.config_type, own, where, self.problems, keys_type.model_fields)
        taken = keys.model_dump(exclude={"name", "label", "limits"})
        if isinstance(keys, HarnessKeys):
            base = asdict(limits)
            taken["limits"] = self._limits(keys.limits, base, f"{where}.limits")
        if config is None:
            return None
        label = framework.get("label") or keys.name
        return PartSpec(kind=kind, name=keys.name, label=label, part_config=config, **taken)

    def _check_whole(
        self, lists: Mapping[str, tuple[PartSpec, ...]], rollout: RolloutTable | None
    ) -> None:
        for kind in ("harness", "task_source"):
            if not self.raw.get(kind):
                self.problems.append((kind, f"required: at least one [[{kind}]]"))
        for kind in ("harness", "verifier"):
            labels = [spec.label for spec in lists[kind]]
            for label in sorted({x for x in labels if labels.count(x) > 1}):
                self.problems.append((kind, f'label "{label}" is used twice; set `label`'))
        classes = [self.registry.find("harness", spec.name) for spec in lists["harness"]]
        known = {rule.name for rule in RENDER_RULES} | {
            rule.name
            for cls in classes
            if cls and issubclass(cls, Harness)
            for rule in cls.render_rules
        }
        for i, name in enumerate(rollout.render_rules if rollout else ()):
            if name not in known:
                message = f'no harness of this run has a render rule "{name}"'
                text = message + did_you_mean(name, known)
                self.problems.append((f"rollout.render_rules.{i}", text))

    def _added(self, tables: Mapping[str, type[BaseModel]]) -> dict[str, BaseModel]:
        added: dict[str, BaseModel] = {}
        for name, model in tables.items():
            # An absent table with required keys is the business of the command that needs it.
            sink = self.problems if name in self.raw else []
            table = check(model, self.raw.get(name, {}), name, sink)
            if table is not None:
                added[name] = table
        return added
