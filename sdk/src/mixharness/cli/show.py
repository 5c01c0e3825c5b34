"""What commands print: tables for people, JSON for programs. It computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from mixharness.certify import Certificate, SituationReport
    from mixharness.commands import HarnessSummary
    from mixharness.exclusions import Exclusion
    from mixharness.plugins import PartRow
    from mixharness.tree.audit import HarnessAudit

Done = Callable[[int, int], None]
"""Called with (finished, all)."""


def line(text: str) -> None:
    """Print one line."""
    typer.echo(text)


def json(value: Any) -> None:
    """Print JSON."""
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; never cut short where there is no terminal."""
    drawn = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        drawn.add_row(*(f"{x:.3f}" if isinstance(x, float) else str(x) for x in row))
    console = Console(highlight=False, markup=False)
    console.width = console.width if console.is_terminal else 200
    console.print(drawn)


def parts(rows: Sequence[PartRow], as_json: bool) -> None:
    """Print the installed parts."""
    if as_json:
        json([asdict(row) for row in rows])
        return
    columns = ("kind", "name", "distribution", "version", "status")
    table(columns, [(r.kind, r.name, r.distribution, r.version, r.status) for r in rows])


def audit(audits: Mapping[str, HarnessAudit], as_json: bool) -> None:
    """Print the audit of a run, one row per harness."""
    if as_json:
        json({label: asdict(found) for label, found in audits.items()})
        return
    found = {label: asdict(each) for label, each in audits.items()}
    keys = list(next(iter(found.values())))
    rows = [(label, *(_short(values[key]) for key in keys)) for label, values in found.items()]
    table(("harness", *keys), rows)


def summary(found: Mapping[str, HarnessSummary], folder: Path) -> None:
    """Print what a collection came to, one row per harness."""
    keys = ("rollouts", "calls", "score", "failures")
    rows = []
    for label, each in found.items():
        own = [_short(getattr(each, key)) for key in keys]
        rows.append((label, *own, each.exclusion.refilled))
    table(("harness", *keys, "refilled"), rows)
    shares = [row for label, each in found.items() for row in _shares(label, each.exclusion)]
    if shares:
        line("excluded rollouts, against those kept:")
        table(("harness", "", "rollouts", "reward", "calls", "tokens"), shares)
    line(f"rollouts are in {folder}")


def _shares(label: str, exclusion: Exclusion) -> list[tuple[object, ...]]:
    """Return two rows to compare, or none where nothing was excluded."""
    if not exclusion.excluded.rollouts:
        return []
    sides = {"kept": exclusion.kept, "excluded": exclusion.excluded}
    return [(label, side, *map(_short, asdict(share).values())) for side, share in sides.items()]


def certificate(found: Certificate, as_json: bool) -> None:
    """Print a certificate, one row per situation; what is wrong stands below it, or on stderr."""
    if as_json:
        json(found.as_json())
    else:
        columns = ("situation", "ok", "calls", "bridged", "forks", "retries", "roles")
        rows = [_situation(report) for report in found.situations]
        table((*columns, "silence_s", "exit"), rows)
    for report in found.situations:
        for problem in report.problems:
            typer.echo(f"{report.name}: {problem}", err=as_json)
    if not as_json:
        verdict = "ok" if found.ok else "not ok"
        line(f"{found.harness} {found.version}: {verdict}")


def _situation(report: SituationReport) -> tuple[object, ...]:
    if not report.calls and report.exit.startswith("not applicable"):
        return (report.name, "-", *[""] * 6, report.exit)
    forks = ", ".join(f.reason + ("" if f.expected else " (unexpected)") for f in report.forks)
    return (
        report.name,
        "yes" if report.ok else "NO",
        report.calls,
        report.bridged,
        forks or "-",
        report.retries,
        _short(report.roles),
        f"{report.max_silence_s:.1f}",
        report.exit,
    )


def _short(value: Any) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items()) or "-"
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
    return value


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show that something goes on, on stderr; yields the function that says what by now."""
    with Console(stderr=True).status(text) as status:
        yield lambda now: status.update(f"{text}: {now}")


@contextmanager
def progress(what: str) -> Iterator[Done]:
    """Show a bar on stderr; yields the function that moves it."""
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)

        def done(finished: int, total: int) -> None:
            bar.update(task, completed=finished, total=total)

        yield done
