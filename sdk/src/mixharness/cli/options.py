"""The options that every command with a run file has. They override keys, and load the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mixharness.config import RunConfig, load_run_file, parse_setting
from mixharness.plugins import Registry, load_plugins

RunFile = Annotated[Path, typer.Argument(help="The run file (TOML).", metavar="RUN_FILE")]
OptionalRunFile = Annotated[
    Path | None,
    typer.Argument(help="The run file (TOML); the options may do without.", metavar="RUN_FILE"),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        metavar="SOURCE[:PATH]",
        help="Use these tasks instead, e.g. `clawgym:DIR`; may be repeated.",
    ),
]
Harnesses = Annotated[
    str | None,
    typer.Option("--harness", metavar="A[,B]", help="Use these harnesses only, by label or name."),
]
SandboxName = Annotated[str | None, typer.Option("--sandbox", help="Use another sandbox.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Override `seed`.")]
Engine = Annotated[str | None, typer.Option("--engine", help="Use another engine.")]
Optimizer = Annotated[str | None, typer.Option("--optimizer", help="Use another optimizer.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one key: `--set limits.max_turns=8`; may be repeated."),
]
RunDir = Annotated[
    Path | None, typer.Option("--run-dir", help="Folder of the run [default: runs/NAME].")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
EXIT_NOT_OK = 1
"""A check was made and found something; `main.py` has the other exit codes."""


def registry_of(ctx: typer.Context) -> Registry:
    """Return the registry this command line was built from."""
    found = ctx.find_object(Registry)
    return load_plugins() if found is None else found


def load(
    ctx: typer.Context,
    run_file: Path | None,
    *,
    seed: int | None = None,
    engine: str | None = None,
    optimizer: str | None = None,
    settings: list[str] | None = None,
    parts: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Load a run file with the overrides of the command line; `--set` wins over the others.

    Without a file they are all there is. `parts` holds more overrides, see `parts`.

    Raises:
        ConfigError: with every problem of file and options.
        PluginError: a named plugin is broken.
    """
    named: dict[str, Any] = {"seed": seed, "engine.name": engine, "optimizer.name": optimizer}
    named |= parts or {}
    overrides: dict[str, Any] = {key: v for key, v in named.items() if v is not None}
    overrides.update(parse_setting(text) for text in settings or ())
    return load_run_file(run_file, registry_of(ctx), overrides)


def parts(
    tasks: Sequence[str] | None, harnesses: str | None, sandbox: str | None
) -> dict[str, Any]:
    """Return the overrides that `--tasks`, `--harness` and `--sandbox` stand for."""
    sources = [_source(*text.partition(":")) for text in tasks or ()]
    names = [name.strip() for name in (harnesses or "").split(",") if name.strip()]
    return {"task_source": sources or None, "harness": names or None, "sandbox.name": sandbox}


def _source(name: str, colon: str, path: str) -> dict[str, Any]:
    return {"name": name, "path": path} if colon else {"name": name}


def run_dir_of(config: RunConfig, run_dir: Path | None) -> Path:
    """Return the run's folder."""
    return Path("runs") / config.name if run_dir is None else run_dir
