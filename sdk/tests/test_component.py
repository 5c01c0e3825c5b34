import pytest
from pydantic import ValidationError

from mixharness import Component, ComponentConfig


class SpoonConfig(ComponentConfig):
    length_mm: int = 150


class Spoon(Component[SpoonConfig]):
    name = "spoon"
    config_type = SpoonConfig


def test_a_component_is_rebuilt_from_name_and_config() -> None:
    spoon = Spoon(SpoonConfig(length_mm=90))
    again = Spoon(SpoonConfig.model_validate_json(spoon.config.model_dump_json()))
    assert again.config == spoon.config


def test_unknown_keys_are_refused_and_configs_are_frozen() -> None:
    with pytest.raises(ValidationError, match="width"):
        SpoonConfig.model_validate({"width": 1})
    with pytest.raises(ValidationError, match="frozen"):
        SpoonConfig().length_mm = 3  # type: ignore[misc]
