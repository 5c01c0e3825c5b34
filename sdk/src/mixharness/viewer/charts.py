"""Plotly figures from the lines of metrics.jsonl. No file is read here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

Metrics = Sequence[Mapping[str, Any]]

PALETTE = ("#2f6fde", "#d9622b", "#1f9d74", "#8b5fbf", "#b3891c", "#c2417c", "#3a8fa8", "#6b7280")
LOGP_GAP_WARNS = 0.05  # TOKENS_AND_TREES section 5, "Correction"
_HEIGHT = 300


def training_charts(metrics: Metrics, summary: Mapping[str, Any]) -> list[str]:
    """Return the report's charts as HTML fragments that need plotly.js on the page."""
    steps = [line for line in metrics if line.get("stage") != "sft"]
    cold = [line for line in metrics if line.get("stage") == "sft"]
    figures = [
        _lines("Reward", steps, _labels(steps, "reward/"), y_range=(0, 1)),
        _before_after(summary.get("harnesses", {})),
        _lines("Groups with contrast (share)", steps, _labels(steps, "contrast/"), y_range=(0, 1)),
        _lines("Entropy (nats per sampled token)", steps, {"entropy": "entropy"}),
        _logp_gap(steps),
        _failures(steps),
        _lines("Loss", steps, {"loss": "loss"}),
        _lines("Gradient norm", steps, {"grad_norm": "grad_norm"}),
        _lines(
            "Cosine between the harnesses' gradients",
            steps,
            _labels(steps, "gradient_cosine/"),
            y_range=(-1, 1),
        ),
        _lines("Cold start: SFT loss", cold, {"loss": "loss"}),
        _lines("Seconds per step", steps, _labels(steps, "time/"), stacked=True),
    ]
    return [_fragment(figure) for figure in figures if figure is not None]


def colors(labels: Iterable[str]) -> dict[str, str]:
    """Give each label its color; the same labels get the same colors everywhere."""
    return {label: PALETTE[index % len(PALETTE)] for index, label in enumerate(sorted(set(labels)))}


def _labels(metrics: Metrics, prefix: str) -> dict[str, str]:
    """Map what stands behind a prefix to the full key."""
    keys = sorted({key for line in metrics for key in line if key.startswith(prefix)})
    return {key.removeprefix(prefix): key for key in keys}


def _series(metrics: Metrics, key: str) -> tuple[list[Any], list[float]]:
    """Return steps and finite values of one key."""
    points = [
        (line.get("step"), float(line[key]))
        for line in metrics
        if isinstance(line.get(key), int | float) and math.isfinite(line[key])
    ]
    return [step for step, _ in points], [value for _, value in points]


def _lines(
    title: str,
    metrics: Metrics,
    keys: Mapping[str, str],
    *,
    y_range: tuple[float, float] | None = None,
    stacked: bool = False,
) -> go.Figure | None:
    figure = _figure(title)
    for label, color in colors(keys).items():
        steps, values = _series(metrics, keys[label])
        if values:
            mode = "lines+markers" if len(values) < 40 else "lines"
            group = {"stackgroup": "all"} if stacked else {}
            line = {"color": color, "width": 2}
            figure.add_scatter(x=steps, y=values, name=label, mode=mode, line=line, **group)
    if not figure.data:
        return None
    figure.update_layout(showlegend=len(figure.data) > 1)
    if y_range:
        figure.update_yaxes(range=[y_range[0] - 0.03, y_range[1] + 0.03])
    return figure


def _logp_gap(metrics: Metrics) -> go.Figure | None:
    title = f"Log-prob gap: mean |Δ log p| (warns at {LOGP_GAP_WARNS})"
    figure = _lines(title, metrics, {"mean |Δ log p|": "logp_gap/mean_abs"})
    if figure is None:
        return None
    values = [value for value in figure.data[0].y if value > 0]
    lowest = math.floor(math.log10(min(values, default=LOGP_GAP_WARNS)))
    figure.update_yaxes(type="log", exponentformat="e", dtick=1, range=[lowest - 0.3, -0.7])
    line = {"dash": "dot", "color": "#c0392b", "width": 1}
    figure.add_hline(y=LOGP_GAP_WARNS, line=line)
    return figure


def _before_after(harnesses: Mapping[str, Mapping[str, Any]]) -> go.Figure | None:
    """One row per harness: a line from the held-out score before to the one after."""
    if not harnesses:
        return None
    figure = _figure("Held-out score, before and after", x_title="score")
    for label, color in colors(harnesses).items():
        row = harnesses[label]
        ends = [row.get("before"), row.get("after")]
        marker = {"size": 13, "color": ["#fff", color], "line": {"color": color, "width": 2}}
        figure.add_scatter(
            x=ends,
            y=[label, label],
            mode="lines+markers+text",
            marker=marker,
            line={"color": color, "width": 3},
            text=[f"{end:.2f}" if end is not None else "" for end in ends],
            textposition="top center",
        )
    figure.update_layout(showlegend=False)
    figure.update_xaxes(range=[-0.03, 1.03])
    figure.update_yaxes(range=[len(harnesses) - 0.4, -0.6], type="category")
    return figure


def _failures(metrics: Metrics) -> go.Figure:
    counts = [(line.get("step"), line.get("failures_by_kind") or {}) for line in metrics]
    kinds = {kind for _, by_kind in counts for kind, count in by_kind.items() if count}
    figure = _figure("Failures by kind (rollouts)")
    for kind, color in colors(kinds).items():
        heights = [by_kind.get(kind, 0) for _, by_kind in counts]
        figure.add_bar(x=[step for step, _ in counts], y=heights, name=kind, marker_color=color)
    if not kinds:
        note = {"text": "no failures", "showarrow": False, "font": {"color": "#64707f"}}
        figure.add_annotation(x=0.5, y=0.5, xref="paper", yref="paper", **note)
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
    figure.update_layout(barmode="stack", showlegend=bool(kinds))
    return figure


def _figure(title: str, x_title: str = "step") -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        title={"text": title, "font": {"size": 15}, "x": 0.01, "xanchor": "left"},
        template="plotly_white",
        height=_HEIGHT,
        margin={"l": 8, "r": 12, "t": 44, "b": 8},
        font={"family": "system-ui, sans-serif", "color": "#1c2430", "size": 12},
        legend={"orientation": "h", "y": -0.22, "x": 0},
        hovermode="closest",
    )
    figure.update_xaxes(title=x_title, automargin=True)
    figure.update_yaxes(automargin=True)
    return figure


def _fragment(figure: go.Figure) -> str:
    config = {"displaylogo": False, "displayModeBar": False, "responsive": True}
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, config=config)
    return html
