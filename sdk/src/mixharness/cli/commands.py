"""The SDK's own commands. Each parses its arguments and calls one function elsewhere.

Bodies import what they run, so that `mixharness --help` starts in no time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from mixharness.cli import options, show

Samples = Annotated[int, typer.Option("--samples", min=1, help="Rollouts per task and harness.")]


def register(app: typer.Typer) -> None:
    """Add the SDK's commands to the app."""
    app.command("plugins")(plugins)
    app.command("rollout")(rollout)
    app.command("eval")(evaluate)
    app.command("audit")(audit)
    export = typer.Typer(help="Other programs' formats.", no_args_is_help=True)
    export.command("atif")(export_atif)
    app.add_typer(export, name="export")
    app.command("certify")(certify)
    harness = typer.Typer(help="Harness programs.", no_args_is_help=True)
    harness.command("install")(install)
    app.add_typer(harness, name="harness")
    sandbox = typer.Typer(help="Sandboxes.", no_args_is_help=True)
    sandbox.command("build")(build_image)
    sandbox.command("reap")(reap)
    app.add_typer(sandbox, name="sandbox")


def plugins(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """List all parts: kind, name, distribution, version, status."""
    show.parts(options.registry_of(ctx).parts(), as_json)


def install(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The harness, e.g. claude_code.")],
) -> None:
    """Install the pinned program of a harness into the cache folder."""
    from mixharness.assemble import install_program
    from mixharness.interrupt import run_interruptible

    with show.waiting(f"installing the program of {name}"):
        program = run_interruptible(install_program(name, options.registry_of(ctx)))
    if program is None:
        show.line(f"{name} needs no program")
    else:
        show.line(f"{program.name} {program.version} is in {program.path}")


def rollout(
    ctx: typer.Context,
    run_file: options.OptionalRunFile = None,
    tasks: options.Tasks = None,
    harness: options.Harnesses = None,
    sandbox: options.SandboxName = None,
    engine: options.Engine = None,
    seed: options.Seed = None,
    settings: options.Settings = None,
    run_dir: options.RunDir = None,
    samples: Samples = 1,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Take the first N tasks only.")
    ] = None,
) -> None:
    """Collect rollouts of all training tasks in all harnesses; train nothing."""
    from mixharness.commands import rollout_run
    from mixharness.interrupt import run_interruptible

    parts = options.parts(tasks, harness, sandbox)
    config = options.load(ctx, run_file, seed=seed, engine=engine, settings=settings, parts=parts)
    folder = options.run_dir_of(config, run_dir)
    with show.progress("rollouts") as done:
        registry = options.registry_of(ctx)
        work = rollout_run(config, registry, folder, samples, done, limit=limit)
        summary = run_interruptible(work)
    show.summary(summary, folder)


def evaluate(
    ctx: typer.Context,
    run_file: options.RunFile,
    weights: Annotated[
        Path | None, typer.Option("--weights", help="Folder of weights to load first.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take weights trained under other render rules, too.")
    ] = False,
    seed: options.Seed = None,
    engine: options.Engine = None,
    settings: options.Settings = None,
    run_dir: options.RunDir = None,
    samples: Samples = 1,
) -> None:
    """Score the evaluation tasks in all harnesses."""
    from mixharness.commands import eval_run
    from mixharness.interrupt import run_interruptible

    config = options.load(ctx, run_file, seed=seed, engine=engine, settings=settings)
    # A folder of its own: stored scores belong to the weights they were made with.
    stamp = datetime.now(UTC).strftime("eval-%Y%m%d-%H%M%S")
    folder = options.run_dir_of(config, None) / stamp if run_dir is None else run_dir
    with show.progress("rollouts") as done:
        registry = options.registry_of(ctx)
        work = eval_run(config, registry, folder, weights, samples, done, force=force)
        summary = run_interruptible(work)
    show.summary(summary, folder)


def audit(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    as_json: options.AsJson = False,
) -> None:
    """Show per harness how faithfully a run was recorded."""
    from mixharness.runs import audit_run

    show.audit(audit_run(run_dir), as_json)


def certify(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The harness.", metavar="HARNESS")],
    model: Annotated[
        Path | None, typer.Option("--model", help="Folder whose tokenizer and template to use.")
    ] = None,
    long_s: Annotated[
        float, typer.Option("--long-s", min=0.0, help="Seconds that the long sampling takes.")
    ] = 130.0,
    as_json: options.AsJson = False,
) -> None:
    """Run a harness's real program in a fixed set of situations: can it be trained in?"""
    from mixharness.certify import certify as certify_harness
    from mixharness.interrupt import run_interruptible

    registry = options.registry_of(ctx)
    with show.progress("situations") as done:
        work = certify_harness(name, registry, model=model, long_s=long_s, done=done)
        certificate = run_interruptible(work)
    show.certificate(certificate, as_json)
    if not certificate.ok:
        raise typer.Exit(options.EXIT_NOT_OK)


def export_atif(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder, or file.jsonl for one line each [default: RUN/atif]."),
    ] = None,
) -> None:
    """Write the rollouts of a run as ATIF trajectories, with token ids and log-probs."""
    from mixharness.exports import export_atif as export

    target = run_dir / "atif" if out is None else out
    show.line(f"{export(run_dir, target)} trajectories are in {target}")


def build_image(
    force: Annotated[
        bool, typer.Option("--force", help="Make it anew where it is there already.")
    ] = False,
) -> None:
    """Make the image that docker sandboxes run in where a task names none."""
    from mixharness.builtin.docker.image import build_base_image
    from mixharness.builtin.docker.image_name import DEFAULT_IMAGE
    from mixharness.interrupt import run_interruptible

    with show.waiting(f"making {DEFAULT_IMAGE}") as say:
        made = run_interruptible(build_base_image(force=force, say=say))
    show.line(f"{DEFAULT_IMAGE} {'is made' if made else 'was there'}")


def reap(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The sandbox backend.")] = "local",
) -> None:
    """Remove sandboxes that a killed run left behind."""
    from mixharness.assemble import reap_sandboxes
    from mixharness.interrupt import run_interruptible

    count = run_interruptible(reap_sandboxes(name, options.registry_of(ctx)))
    show.line(f"{count} sandboxes removed")
