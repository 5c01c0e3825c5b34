"""What every part must do, whatever its kind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from mixharness.component import Component

HEAVY = ("torch", "transformers", "vllm", "docker")


class ComponentContract:
    """Base of all contracts. A subclass gives the fixture `component`."""

    @pytest.fixture
    def component(self) -> Component[Any]:
        """Return the part under test; to be overridden."""
        raise NotImplementedError("override the fixture `component`")

    def test_name_and_config_type_are_set(self, component: Component[Any]) -> None:
        """It can be named in a run file."""
        assert component.name
        assert isinstance(component.config, component.config_type)

    def test_unknown_keys_are_refused(self, component: Component[Any]) -> None:
        """A typing mistake in a run file is found."""
        with pytest.raises(ValidationError, match="no_such_key"):
            component.config_type.model_validate({"no_such_key": 1})

    def test_the_config_survives_json(self, component: Component[Any]) -> None:
        """The part can be rebuilt in another process."""
        text = component.config.model_dump_json()
        again = type(component)(component.config_type.model_validate_json(text))
        assert again.config == component.config

    def test_the_plugin_is_light(self, component: Component[Any]) -> None:
        """Importing the plugin's top module imports nothing heavy."""
        package = type(component).__module__.partition(".")[0]
        code = f"import sys, {package}; print([m for m in {HEAVY} if m in sys.modules])"
        done = subprocess.run(  # the interpreter and a module that is imported already
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:  # a class of a test file has no importable package
            assert done.stdout.strip() == "[]"
