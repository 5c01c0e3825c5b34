"""What every pluggable part has in common: a name and a config type. No discovery here."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict


class ComponentConfig(BaseModel):
    """The part's own keys of its run-file table; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ConfigT = TypeVar("ConfigT", bound=ComponentConfig)


class Component(Generic[ConfigT]):
    """A part built from its config alone, so that any process can rebuild it from (name, config).

    Subclasses set `name` (as written in run files) and `config_type`.
    """

    name: ClassVar[str]
    config_type: ClassVar[type[ComponentConfig]] = ComponentConfig

    def __init__(self, config: ConfigT) -> None:
        self.config = config
