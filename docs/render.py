"""Writes docs/config.md, and the table of docs/sandboxes.md, from the code.

Called as `python docs/render.py`; a test compares pages and code.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import runpy
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mixharness.plugins import KINDS, PLUGINS_VARIABLE, Registry, load_plugins
from mixharness.run_tables import (
    HarnessKeys,
    LabelKeys,
    NameKeys,
    PruningTable,
    RolloutTable,
    SamplingTable,
    TaskSourceKeys,
    TopLevel,
)
from mixharness.testing.contracts.sandbox import Behaviour
from mixharness.types import Limits

PAGE = Path(__file__).with_name("config.md")
SANDBOXES_PAGE = Path(__file__).with_name("sandboxes.md")
SANDBOX_TESTS = Path(__file__).parents[1] / "sdk/tests"
TABLE = re.compile(r"(<!-- table: .*? -->\n\n)(.*?)(?=\n\n<!-- end of table -->)", re.DOTALL)
OURS = "agentloop,claude_code,codex,office,trainer"
HEAD = """# The run file

<!-- Written by docs/render.py from the code; do not edit. -->

A run file is TOML. `mixharness rollout`, `eval` and `train` read it; all problems are reported at
once, with the path of each, and nothing is started before it is right.

- Parts stand in tables named by their kind: `[[harness]]`, `[[task_source]]`, `[[verifier]]` and
  `[[tracker]]` may be repeated, `[sandbox]`, `[engine]` and `[optimizer]` stand once.
- `name` chooses the part (`mixharness plugins` lists them). A few more keys are the framework's;
  all others are the part's own.
- At least one harness, one task source and an engine are required. The sandbox is `local` and the
  tracker `jsonl` unless said otherwise.
- `--set key.path=value` overrides any key (entries of a list by number or label:
  `harness.codex.weight=2`); `--seed`, `--engine` and `--optimizer` are short for the commonest.
  Another engine or optimizer drops the other keys of that table.
- `mixharness rollout` takes `--tasks SOURCE[:PATH]`, `--harness A[,B]` and `--sandbox NAME` too, in
  place of a file's tables. With them and `--engine` it needs no file at all.
- `top_p`, `top_k`, penalties and grammars are refused: every log-prob is of
  softmax(logits / temperature) over the full vocabulary.
"""


def render() -> str:
    """Return the page."""
    registry = load_plugins()
    lines = [HEAD]
    lines += _section("## Top level", TopLevel)
    lines += _section("## `[limits]`", Limits)
    lines += _section("## `[sampling]`", SamplingTable)
    lines += _section("## `[rollout]`", RolloutTable)
    lines += _section("## `[pruning]`", PruningTable)
    for name, table in sorted(registry.tables().items()):
        lines += _section(f"## `[{name}]`", table)
    lines += ["## Framework keys of parts", ""]
    lines += _section("### Every part", NameKeys)
    lines += _section("### `[[harness]]`", HarnessKeys)
    lines += _section("### `[[verifier]]`", LabelKeys)
    lines += _section("### `[[task_source]]`", TaskSourceKeys)
    lines += _parts(registry)
    return "\n".join(lines).rstrip() + "\n"


def with_sandbox_table(page: str) -> str:
    """Return the page on sandboxes with the table of what the backends' tests declare."""
    local, docker, bubblewrap = (
        runpy.run_path(str(SANDBOX_TESTS / f"test_{name}_sandbox.py"))
        for name in ("local", "docker", "bubblewrap")
    )
    declared = {
        "`local`, as root": local["AS_ROOT"],
        "`local`, as another user": local["AS_ANOTHER"],
        "`docker`": docker["TestContract"].differs,
        "`bubblewrap`": bubblewrap["TestContract"].differs,
    }
    rows = [["what holds", "where not", *declared], ["---"] * (2 + len(declared))]
    for each in Behaviour:
        held = ("no" if each in differs else "yes" for differs in declared.values())
        rows.append([each.usual, each.instead, *held])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return TABLE.sub(lambda found: found[1] + table, page)


def _parts(registry: Registry) -> list[str]:
    lines = ["## Keys of the parts in this repository", ""]
    for kind in KINDS:
        for name in registry.names(kind):
            config = registry.get(kind, name).config_type
            lines += _section(f"### {kind} `{name}`", config)
    return lines


def _section(heading: str, table: type[Any]) -> list[str]:
    keys = _keys(table)
    lines = [heading, ""]
    if not keys:
        return [*lines, "No keys of its own.", ""]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    docs = _attribute_docs(table)
    for key, default in keys.items():
        kind, text = docs[key]
        cells = (f"`{key}`", f"`{kind}`", default, text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _keys(table: type[Any]) -> dict[str, str]:
    if not issubclass(table, BaseModel):
        return {f.name: f"`{f.default!r}`" for f in fields(table)}
    shown: dict[str, str] = {}
    for key, field in table.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        shown[key] = "required" if field.is_required() else f"`{default!r}`"
    return shown


def _attribute_docs(table: type[Any]) -> dict[str, tuple[str, str]]:
    """Return annotation and docstring of each attribute, from the source of all bases."""
    found: dict[str, tuple[str, str]] = {}
    for cls in reversed(table.__mro__):
        if cls.__module__.partition(".")[0] in ("pydantic", "builtins", "typing", "abc"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = (ast.unparse(node.annotation), _text(after))
    return found


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


if __name__ == "__main__":
    os.environ[PLUGINS_VARIABLE] = OURS
    PAGE.write_text(render(), encoding="utf-8")
    page = SANDBOXES_PAGE.read_text(encoding="utf-8")
    SANDBOXES_PAGE.write_text(with_sandbox_table(page), encoding="utf-8")
