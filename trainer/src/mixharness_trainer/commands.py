"""The trainer's verbs and its run-file tables. Imports no torch until a verb is called."""

from __future__ import annotations

from typing import Annotated

import typer

from mixharness.cli import options, show
from mixharness.interrupt import run_interruptible
from mixharness_trainer.tables import TABLES

__all__ = ["TABLES", "register_commands"]

LeaveOut = Annotated[
    list[str] | None,
    typer.Option(
        "--leave-out",
        metavar="HARNESS",
        help="Never train in this harness, by label, but evaluate in it; may be repeated.",
    ),
]

Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the run in the folder, at the step it was in."),
]


def register_commands(app: typer.Typer) -> None:
    """Add `mixharness train` and `mixharness engine start`."""
    app.command("train")(train_command)
    engine = typer.Typer(help="Engines that run as servers.", no_args_is_help=True)
    engine.callback()(lambda: None)  # a group, even of one verb
    engine.command("start")(start_command)
    app.add_typer(engine, name="engine")


def train_command(
    ctx: typer.Context,
    run_file: options.RunFile,
    seed: options.Seed = None,
    engine: options.Engine = None,
    optimizer: options.Optimizer = None,
    leave_out: LeaveOut = None,
    settings: options.Settings = None,
    run_dir: options.RunDir = None,
    resume: Resume = False,
) -> None:
    """Train a policy as the run file says, and write its run folder."""
    config = options.load(
        ctx,
        run_file,
        seed=seed,
        engine=engine,
        optimizer=optimizer,
        settings=settings,
        parts={f"harness.{label}.weight": 0.0 for label in leave_out or ()},
    )
    from mixharness_trainer.train import run_training

    folder = options.run_dir_of(config, run_dir)
    run_training(config, options.registry_of(ctx), folder, resume=resume)


def start_command(
    ctx: typer.Context,
    run_file: options.RunFile,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Of the first; others count up.")] = 8000,
    seed: options.Seed = None,
    engine: options.Engine = None,
    settings: options.Settings = None,
) -> None:
    """Launch the vLLM servers of a run file, print their URLs, and serve until Ctrl-C."""
    config = options.load(ctx, run_file, seed=seed, engine=engine, settings=settings)
    from mixharness_trainer.engines.vllm.serve import Listen, serve

    run_interruptible(
        serve(config, Listen(host=host, port=port), lambda urls: show.line("\n".join(urls)))
    )
