import pytest

from mixharness import ConfigError, MixHarnessError, PluginError
from mixharness.errors import HarnessError, boundary


def test_a_config_error_lists_all_problems_path_first() -> None:
    error = ConfigError("run.toml", [("seed", "must be 0 or more"), ("engine", "required")])
    assert str(error) == (
        "config error in run.toml\n  seed    must be 0 or more\n  engine  required"
    )


def test_the_boundary_names_the_part_and_keeps_the_cause() -> None:
    with (
        pytest.raises(HarnessError, match="harness 'x': KeyError: 'y'") as info,
        boundary(HarnessError, "harness 'x'"),
    ):
        raise KeyError("y")
    assert isinstance(info.value.__cause__, KeyError)


def test_our_own_errors_pass_the_boundary() -> None:
    with pytest.raises(PluginError), boundary(HarnessError, "harness 'x'"):
        raise PluginError("mine")


def test_all_errors_have_one_base() -> None:
    assert issubclass(HarnessError, MixHarnessError)
