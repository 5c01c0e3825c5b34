"""The report's tables, from the rows of summary.json. No file is read here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mixharness.viewer.charts import colors

_COLUMNS = (
    ("before", "before", ".3f"),
    ("after", "after", ".3f"),
    ("diff", "difference", "+.3f"),
    ("interval", "95 % interval", ""),
    ("held_out_tasks", "held-out tasks", ",d"),
    ("rollouts", "rollouts", ",d"),
    ("refilled", "refilled", ",d"),
    ("failures", "failures", ",d"),
    ("infra_failures", "of these infra", ",d"),
    ("bridge_rate", "bridge rate", ".3f"),
    ("delivered_fraction", "delivered", ".3f"),
    ("unexplained_loss", "unexplained loss", ".3g"),
    ("groups", "groups", ",d"),
    ("groups_with_contrast", "groups with contrast", ",d"),
    ("tokens", "trained tokens", ",d"),
    ("grad_norm", "gradient norm", ".2e"),
)
_SHARES = (
    ("rollouts", "rollouts", ",d"),
    ("reward", "mean reward", ".3f"),
    ("calls", "mean calls", ".1f"),
    ("tokens", "mean sampled tokens", ",.0f"),
)


def result_table(harnesses: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what a run came to, one row per harness; `harnesses` is that of summary.json."""
    if not harnesses:
        return '<p class="note">The run has no summary yet.</p>'
    rows = [
        _name(label if harnesses[label].get("trained", True) else f"{label} (left out)", color)
        + "".join(_cell(harnesses[label], key, form) for key, _, form in _COLUMNS)
        for label, color in colors(harnesses).items()
    ]
    return _card(
        ["harness", *(title for _, title, _ in _COLUMNS)],
        rows,
        "Scores are on held-out tasks, before the first policy-gradient update and after the last "
        "one; the interval is paired over tasks. The gradient norm of a harness is that of the "
        "loss by the log-probs of its tokens, mean over the steps.",
    )


def exclusion_table(harnesses: Mapping[str, Mapping[str, Any]]) -> str:
    """Return kept rollouts against excluded ones, per harness; nothing when none was excluded."""
    rows = []
    for label, color in colors(harnesses).items():
        kept, excluded = (harnesses[label].get(side, {}) for side in ("kept", "excluded"))
        if excluded.get("rollouts"):
            cells = [
                f"<td>{_number(kept.get(key), form)} / {_number(excluded.get(key), form)}</td>"
                for key, _, form in _SHARES
            ]
            rows.append(_name(label, color) + "".join(cells))
    if not rows:
        return ""
    return _card(
        ["kept / excluded", *(title for _, title, _ in _SHARES)],
        rows,
        "Excluded are rollouts that no loss and no baseline saw, attempts that were repeated among "
        "them. Where they are much longer than those kept, excluding them biases what is learned.",
    )


def _card(titles: Sequence[str], rows: Sequence[str], note: str) -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        f'</table><p class="note">{note}</p></div>'
    )


def _name(label: str, color: str) -> str:
    return f'<td class="name" style="--swatch:{color}">{escape(label)}</td>'


def _cell(row: Mapping[str, Any], key: str, form: str) -> str:
    if key == "interval":
        low, high = row.get("diff_low"), row.get("diff_high")
        known = low is not None and high is not None
        return f"<td>{f'[{low:+.3f}, {high:+.3f}]' if known else '–'}</td>"
    return f'<td class="{_mark(row, key)}">{_number(row.get(key), form)}</td>'


def _number(value: Any, form: str) -> str:
    return "–" if value is None else format(value, form)


def _mark(row: Mapping[str, Any], key: str) -> str:
    """Color only what the interval or the audit vouches for."""
    if key == "diff" and row.get("diff_low") is not None and row.get("diff_high") is not None:
        return "good" if row["diff_low"] > 0 else "bad" if row["diff_high"] < 0 else ""
    return "bad" if key == "unexplained_loss" and row.get(key) else ""
