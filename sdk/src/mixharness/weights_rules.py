"""Which render rules a folder of weights was trained under (TOKENS_AND_TREES 1.3).

A policy reads other prompts under other rules, so its score would be another policy's. Making
weights is the trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from mixharness.config import RunConfig
from mixharness.errors import ConfigError
from mixharness.harness import Harness
from mixharness.plugins import Registry
from mixharness.proxy.rulebook import RENDER_RULES

RULES_FILE = "mixharness.json"
"""Beside the weights' own files."""


def rules_of_run(config: RunConfig, registry: Registry) -> list[str]:
    """Return the render rules that a run file switches on, as `name@version`, sorted."""
    classes = (registry.find("harness", spec.name) for spec in config.harnesses)
    own = (cls.render_rules for cls in classes if cls and issubclass(cls, Harness))
    known = {rule for rules in (RENDER_RULES, *own) for rule in rules}
    return sorted({rule.label for rule in known if rule.name in config.rollout.render_rules})


def note_rules(folder: Path, rules: Sequence[str]) -> None:
    """Write down under which rules a folder's weights were trained."""
    (folder / RULES_FILE).write_bytes(orjson.dumps({"render_rules": sorted(rules)}) + b"\n")


def check_rules(folder: Path, rules: Sequence[str]) -> None:
    """Refuse weights that were trained under other rules; those without a note pass.

    Raises:
        ConfigError: the note says other rules.
    """
    file = folder / RULES_FILE
    if not file.is_file():
        return
    trained = orjson.loads(file.read_bytes())["render_rules"]
    if trained != sorted(rules):
        message = (
            f"{folder} was trained under render rules [{', '.join(trained)}], this run has "
            f"[{', '.join(sorted(rules))}]; change them, or score it nevertheless with --force"
        )
        raise ConfigError("the weights", [("rollout.render_rules", message)])
