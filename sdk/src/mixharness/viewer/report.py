"""report.html: one self-contained page over a run folder. It needs no network to be read."""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs
from tokenizers import Tokenizer

from mixharness.proxy.log import CALLS
from mixharness.rollout.store import ROLLOUT_FILE, RunStore
from mixharness.runs import pruning_of
from mixharness.tree.prune import DEFAULT_PRUNING, Pruning
from mixharness.types import Rollout
from mixharness.viewer.charts import Metrics, training_charts
from mixharness.viewer.tables import exclusion_table, result_table
from mixharness.viewer.tree_view import rollout_view

_CANDIDATES = 4


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run folder holds, as far as the report shows it."""

    name: str
    summary: Mapping[str, Any]
    """summary.json; empty while the run goes on."""
    metrics: Metrics
    """One mapping per line of metrics.jsonl."""
    tokenizer: Tokenizer | None = None
    pruning: Pruning = DEFAULT_PRUNING


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run folder and return its path.

    Whatever the folder lacks (a run that was killed has no summary) is left out of the page.
    """
    page = render_report(read_run(run_dir), pick_rollouts(RunStore(run_dir)))
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def read_run(run_dir: Path) -> RunData:
    """Read summary, metrics and tokenizer of a run folder, each where it is there."""
    summary_path, metrics_path = run_dir / "summary.json", run_dir / "metrics.jsonl"
    summary = json.loads(summary_path.read_text()) if summary_path.exists() else {}
    lines = metrics_path.read_text().splitlines() if metrics_path.exists() else []
    return RunData(
        name=run_dir.resolve().name,
        summary=summary,
        metrics=[json.loads(line) for line in lines if line.strip()],
        tokenizer=_tokenizer(run_dir),
        pruning=pruning_of(run_dir),
    )


def render_report(run: RunData, rollouts: Sequence[Rollout]) -> str:
    """Return the page. `rollouts` are those to draw."""
    harnesses = run.summary.get("harnesses", {})
    charts = training_charts(run.metrics, run.summary)
    views = [rollout_view(rollout, run.tokenizer, run.pruning) for rollout in rollouts]
    assets = files("mixharness.viewer") / "assets"
    return Template((assets / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(run.name),
        facts=escape(_facts(run)),
        css=(assets / "page.css").read_text(encoding="utf-8"),
        js=(assets / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        result=result_table(harnesses) + exclusion_table(harnesses),
        charts=_grid(charts) or '<p class="note">No step has been logged.</p>',
        rollouts="".join(views) or '<p class="note">No rollout is stored in this folder.</p>',
    )


def pick_rollouts(store: RunStore) -> list[Rollout]:
    """Choose what to draw: per harness, of the best-scored and latest the one with most calls.

    Calls are read of a few candidates only; a run can hold many thousand rollouts.
    """
    ranked: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for rollout_id in store.finished():
        folder = store.path(rollout_id)
        if not (folder / CALLS).exists():  # the sandbox never came up
            continue
        record = json.loads((folder / ROLLOUT_FILE).read_bytes())
        score = record["score"]["value"] if record["score"] else -1.0
        label = record["key"]["harness"]
        ranked[label].append((score, record["policy_version"], rollout_id))
    picked = []
    for label in sorted(ranked):
        best = heapq.nlargest(_CANDIDATES, ranked[label])
        candidates = [store.load(rollout_id) for _, _, rollout_id in best]
        picked.append(max(candidates, key=lambda rollout: len(rollout.calls)))
    return picked


def _facts(run: RunData) -> str:
    facts = []
    if "steps" in run.summary:
        facts.append(f"{run.summary['steps']} steps")
    if "wall_s" in run.summary:
        facts.append(f"{run.summary['wall_s'] / 60:.1f} minutes")
    harnesses = run.summary.get("harnesses", {})
    if harnesses:
        facts.append(f"harnesses: {', '.join(sorted(harnesses))}")
    return " · ".join(facts) or "no summary yet: the run goes on or was stopped"


def _grid(charts: Sequence[str]) -> str:
    cards = "".join(f'<div class="card">{chart}</div>' for chart in charts)
    return f'<div class="grid">{cards}</div>' if charts else ""


def _tokenizer(run_dir: Path) -> Tokenizer | None:
    folders = [run_dir / "policy", *sorted(run_dir.glob("checkpoint*"))]
    found = [path for folder in folders for path in sorted(folder.rglob("tokenizer.json"))]
    return Tokenizer.from_file(str(found[0])) if found else None
