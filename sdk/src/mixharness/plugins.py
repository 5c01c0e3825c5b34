"""Discovery of parts: built-ins, installed plugins and guards around them. Builds no part.

There is no global manager and nothing happens at import: `load_plugins` returns a new `Registry`.
A plugin that cannot be loaded is kept in `Registry.broken` and only matters to who names it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

import pluggy
import structlog
import typer
from pydantic import BaseModel

from mixharness import builtin, hookspecs
from mixharness.component import Component, ComponentConfig
from mixharness.engine import InferenceEngine
from mixharness.errors import PluginError
from mixharness.harness import Harness
from mixharness.optimizer import Optimizer
from mixharness.sandbox import SandboxBackend
from mixharness.task_source import TaskSource
from mixharness.tracker import Tracker
from mixharness.verifier import Verifier

log = structlog.get_logger()

PLUGIN_GROUP = "mixharness"
COMMAND_GROUP = "mixharness.commands"
PLUGINS_VARIABLE = "MIXHARNESS_PLUGINS"

KINDS: Mapping[str, tuple[str, type[Component[Any]]]] = {
    "harness": ("register_harnesses", Harness),
    "verifier": ("register_verifiers", Verifier),
    "task_source": ("register_task_sources", TaskSource),
    "optimizer": ("register_optimizers", Optimizer),
    "sandbox": ("register_sandboxes", SandboxBackend),
    "engine": ("register_engines", InferenceEngine),
    "tracker": ("register_trackers", Tracker),
}
"""Kind, as written in run files, to its hook and base class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a plugin comes from."""

    plugin: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One registered class."""

    kind: str
    name: str
    cls: type[Component[Any]]
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """One line of `mixharness plugins`."""

    name: str
    kind: str
    distribution: str
    version: str
    status: str
    """`ok`, `clash`, or `broken: …`; a broken plugin is one row of kind `plugin`."""


class CommandModule(Protocol):
    """What an entry point of the group `mixharness.commands` names: verbs and run-file tables."""

    TABLES: Mapping[str, type[BaseModel]]
    """Top-level run-file tables; every table has a default for each key, or is optional."""

    def register_commands(self, app: typer.Typer) -> None:
        """Add commands to the command line."""


class Registry:
    """The parts that are there, by kind and name, and the plugins that could not be loaded."""

    def __init__(self) -> None:
        self.commands: dict[str, CommandModule] = {}
        """Entry-point name to module, of the group `mixharness.commands`."""
        self.broken: dict[str, Exception] = {}
        """Entry-point name to why that plugin could not be loaded."""
        self._origins: dict[str, Origin] = {}
        self._parts: dict[tuple[str, str], list[Part]] = {}

    def add(self, parts: Iterable[Part]) -> None:
        """Take parts; two of one kind and name are a clash, raised when they are asked for."""
        for part in parts:
            self._parts.setdefault((part.kind, part.name), []).append(part)

    def add_broken(self, origin: Origin, error: Exception) -> None:
        """Keep a plugin that could not be loaded, with its error."""
        self.broken[origin.plugin] = error
        self._origins[origin.plugin] = origin

    def names(self, kind: str) -> list[str]:
        """Return the names of one kind, sorted."""
        return sorted(name for part_kind, name in self._parts if part_kind == kind)

    def find(self, kind: str, name: str) -> type[Component[Any]] | None:
        """Return the class, or None when no part has that name.

        Raises:
            PluginError: two plugins claim the name, or the plugin of that name is broken.
        """
        parts = self._parts.get((kind, name), [])
        if len(parts) > 1:
            owners = " and ".join(f"{p.origin} (plugin {p.origin.plugin!r})" for p in parts)
            raise PluginError(
                f"{len(parts)} plugins provide the {kind} {name!r}: {owners}. "
                f"Uninstall one, or name the plugins to load in {PLUGINS_VARIABLE}."
            )
        if parts:
            return parts[0].cls
        if name in self.broken:
            cause = self.broken[name]
            raise PluginError(
                f"plugin {name!r} ({self._origins[name]}) is broken: {describe(cause)}"
            ) from cause
        return None

    def get(self, kind: str, name: str) -> type[Component[Any]]:
        """Return the class of a part.

        Raises:
            PluginError: there is none, two plugins claim it, or its plugin is broken.
        """
        cls = self.find(kind, name)
        if cls is None:
            raise PluginError(self.unknown(kind, name))
        return cls

    def unknown(self, kind: str, name: str) -> str:
        """Say that there is no such part, what there is, and what was probably meant."""
        names = self.names(kind)
        text = f"no {kind} named {name!r}; installed: {', '.join(names) or 'none'}"
        text += did_you_mean(name, names)
        if self.broken:
            text += f" (broken plugins: {', '.join(sorted(self.broken))})"
        return text

    def parts(self) -> list[PartRow]:
        """Return one row per part and per broken plugin, for people and for JSON."""
        rows = [
            PartRow(
                name=part.name,
                kind=part.kind,
                distribution=part.origin.distribution,
                version=part.origin.version,
                status="ok" if len(parts) == 1 else "clash",
            )
            for parts in self._parts.values()
            for part in parts
        ]
        rows += [
            PartRow(
                name=name,
                kind="plugin",
                distribution=self._origins[name].distribution,
                version=self._origins[name].version,
                status=f"broken: {describe(error)}",
            )
            for name, error in self.broken.items()
        ]
        return sorted(rows, key=lambda row: (row.kind, row.name, row.distribution))

    def tables(self) -> dict[str, type[BaseModel]]:
        """Return the run-file tables that command modules add."""
        return {name: t for mod in self.commands.values() for name, t in mod.TABLES.items()}


def load_plugins(*extra: object, installed: bool = True) -> Registry:
    """Find all parts: built-ins, then installed plugins, then `extra` modules.

    The environment variable `MIXHARNESS_PLUGINS` (`a,b`) restricts the installed ones to these
    entry-point names; set and empty means none.

    Args:
        extra: modules or objects with hook implementations.
        installed: look at entry points at all.

    Raises:
        PluginError: a plugin of `extra` is broken.
    """
    manager = pluggy.PluginManager("mixharness")
    manager.add_hookspecs(hookspecs)
    registry = Registry()
    own = Origin(plugin="builtin", distribution="mixharness", version=_own_version())
    registry.add(_register(manager, builtin, own))
    for entry in _entry_points(PLUGIN_GROUP) if installed else ():
        origin = origin_of(entry)
        try:
            registry.add(_register(manager, entry.load(), origin))
        except Exception as exc:  # plugin code may raise anything; it breaks itself only
            registry.add_broken(origin, exc)
    for plugin in extra:
        name = str(getattr(plugin, "__name__", type(plugin).__name__))
        origin = Origin(plugin=name, distribution=name, version="")
        try:
            registry.add(_register(manager, plugin, origin))
        except Exception as exc:
            raise PluginError(f"plugin {name!r} is broken: {describe(exc)}") from exc
    for entry in _entry_points(COMMAND_GROUP) if installed else ():
        try:
            registry.commands[entry.name] = _command_module(entry)
        except Exception as exc:
            registry.add_broken(replace(origin_of(entry), plugin=f"{entry.name} commands"), exc)
    for name, error in registry.broken.items():
        log.warning("plugin_broken", plugin=name, error=describe(error))
    return registry


def origin_of(entry: EntryPoint) -> Origin:
    """Return where an entry point comes from."""
    dist = entry.dist
    if dist is None:
        return Origin(plugin=entry.name, distribution="unknown", version="")
    return Origin(plugin=entry.name, distribution=dist.name, version=dist.version)


def describe(error: BaseException) -> str:
    """Return one line for an exception."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `. Did you mean "x"?`, or nothing when no choice is near."""
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f'. Did you mean "{near[0]}"?' if near else ""


def _entry_points(group: str) -> list[EntryPoint]:
    found = sorted(entry_points(group=group), key=lambda entry: entry.name)
    wanted = os.environ.get(PLUGINS_VARIABLE)
    if wanted is None:
        return found
    names = {name.strip() for name in wanted.split(",")}
    return [entry for entry in found if entry.name in names]


def _command_module(entry: EntryPoint) -> CommandModule:
    module = entry.load()
    if getattr(module, "TABLES", None) is None or not callable(module.register_commands):
        raise TypeError(f"{entry.value} needs TABLES and register_commands(app)")
    loaded: CommandModule = module
    return loaded


def _register(manager: pluggy.PluginManager, plugin: Any, origin: Origin) -> list[Part]:
    """Call one plugin's hooks and check what they return; all of it, or an exception."""
    manager.register(plugin, name=f"{origin.distribution}:{origin.plugin}")
    try:
        manager.check_pending()  # a misspelt hook is otherwise silent
        return [
            _checked(kind, cls, origin)
            for kind, (hook, _) in KINDS.items()
            for impl in getattr(manager.hook, hook).get_hookimpls()
            if impl.plugin is plugin
            for cls in impl.function()
        ]
    except Exception:
        manager.unregister(plugin)
        raise


def _checked(kind: str, cls: Any, origin: Origin) -> Part:
    base = KINDS[kind][1]
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise TypeError(f"{KINDS[kind][0]} returned {cls!r}, which is no subclass of {base}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError(f"{cls.__qualname__} sets no `name`")
    if not issubclass(cls.config_type, ComponentConfig):
        raise TypeError(f"{cls.__qualname__}.config_type is no ComponentConfig")
    return Part(kind=kind, name=name, cls=cls, origin=origin)


def _own_version() -> str:
    from mixharness import __version__  # the package is half imported while this file loads

    return __version__
