"""What one version of a program is expected to do in each situation: files of its plugin.

Reads and checks them. Whether a rollout kept to it is verdict.py's.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from mixharness.certify.situations import load_situations
from mixharness.errors import ConfigError
from mixharness.harness import Harness, Program
from mixharness.plugins import did_you_mean
from mixharness.types import CallRole

PROGRAMLESS = "plugin.toml"
"""The file of a harness without a program of its own: its behaviour is its plugin's."""


class Expected(BaseModel):
    """What a program does in one situation; the defaults are a program that bridges everything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    forks: tuple[str, ...] = ()
    """Reasons of the forks, in the order they happen."""
    exit: str | None = None
    """`completed` or a kind of failure; None for what the situation leads to by itself."""
    calls: int | None = Field(default=None, ge=0)
    """Model calls on record; None for what the situation takes by itself."""
    roles: frozenset[CallRole] = frozenset({CallRole.MAIN})
    config: dict[str, Any] = {}
    """Keys of the harness that this situation needs."""
    not_applicable: str = ""
    """Why the program cannot be in this situation; it is shown and not run."""

    @model_validator(mode="after")
    def _nothing_beside_a_reason(self) -> Self:
        if self.not_applicable and self.model_fields_set != {"not_applicable"}:
            raise ValueError("what is not applicable has no other key")
        return self


def load_expectations(harness: Harness[Any], program: Program | None) -> Mapping[str, Expected]:
    """Return what is expected, by situation; those that the file leaves out have the defaults.

    Raises:
        ConfigError: there is no file for this version, or it is wrong.
    """
    folder = Path(inspect.getfile(type(harness))).parent / harness.certify
    file = folder / (f"{program.version}.toml" if program else PROGRAMLESS)
    if not file.is_file():
        there = ", ".join(sorted(path.name for path in folder.glob("*.toml"))) or "none"
        message = f"no such file; there are: {there}. docs/certify.md says what belongs there"
        raise ConfigError(str(file), [(harness.name, message)])
    return _checked(file)


def _checked(file: Path) -> Mapping[str, Expected]:
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
        found = TypeAdapter(dict[str, Expected]).validate_python(given)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(str(file), [("syntax", str(exc))]) from exc
    except ValidationError as exc:
        problems = [(".".join(map(str, e["loc"])), e["msg"]) for e in exc.errors()]
        raise ConfigError(str(file), problems) from exc
    names = [situation.name for situation in load_situations()]
    unknown = [
        (name, f"no such situation{did_you_mean(name, names)}") for name in found.keys() - names
    ]
    if unknown:
        raise ConfigError(str(file), sorted(unknown))
    return {name: found.get(name, Expected()) for name in names}
