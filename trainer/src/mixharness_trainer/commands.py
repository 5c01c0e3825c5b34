"""The trainer's verbs and its run-file tables. Imports no torch until a verb is called."""

from __future__ import annotations

import typer

from mixharness.cli import options
from mixharness_trainer.tables import TABLES

__all__ = ["TABLES", "register_commands"]


def register_commands(app: typer.Typer) -> None:
    """Add `mixharness train`."""
    app.command("train")(train_command)


def train_command(
    ctx: typer.Context,
    run_file: options.RunFile,
    seed: options.Seed = None,
    engine: options.Engine = None,
    optimizer: options.Optimizer = None,
    settings: options.Settings = None,
    run_dir: options.RunDir = None,
) -> None:
    """Train a policy as the run file says, and write its run folder."""
    config = options.load(
        ctx, run_file, seed=seed, engine=engine, optimizer=optimizer, settings=settings
    )
    from mixharness_trainer.train import run_training

    run_training(config, options.registry_of(ctx), options.run_dir_of(config, run_dir))
