"""A plugin's file of what is expected: found by version, checked as a whole."""

from pathlib import Path

import pytest

from mixharness.certify.expectations import Expected, load_expectations
from mixharness.errors import ConfigError
from mixharness.harness import Program
from mixharness.testing import EchoHarness
from mixharness.testing.doubles import EchoHarnessConfig
from mixharness.types import CallRole

PROGRAM = Program(name="echo", version="1.2.3", path=Path("/nowhere"), executable="echo")


def harness_with(folder: Path) -> EchoHarness:
    class Expecting(EchoHarness):
        certify = str(folder)

    return Expecting(EchoHarnessConfig())


def test_the_file_of_the_version_is_read_and_the_rest_is_default(tmp_path: Path) -> None:
    (tmp_path / "1.2.3.toml").write_text(
        '[subagent]\nroles = ["main", "subagent"]\nforks = ["user_changed"]\n'
        '[overflow]\nnot_applicable = "endless"\n'
    )
    found = load_expectations(harness_with(tmp_path), PROGRAM)
    assert found["subagent"].roles == {CallRole.MAIN, CallRole.SUBAGENT}
    assert found["subagent"].forks == ("user_changed",)
    assert found["overflow"].not_applicable == "endless"
    assert found["two_tools"] == Expected()


def test_without_a_program_the_file_is_the_plugins(tmp_path: Path) -> None:
    (tmp_path / "plugin.toml").write_text("[two_tools]\ncalls = 1\n")
    assert load_expectations(harness_with(tmp_path), None)["two_tools"].calls == 1


def test_the_folder_stands_beside_the_module_of_the_class() -> None:
    with pytest.raises(ConfigError, match=r"testing/certify/plugin\.toml"):
        load_expectations(EchoHarness(EchoHarnessConfig()), None)


def test_a_version_nobody_looked_at_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.2.2.toml").touch()
    with pytest.raises(ConfigError, match=r"no such file; there are: 1\.2\.2\.toml"):
        load_expectations(harness_with(tmp_path), PROGRAM)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[two_tolls]\n", 'two_tolls  no such situation. Did you mean "two_tools"?'),
        ("[two_tools]\nfork = []\n", "two_tools.fork"),
        ('[two_tools]\nroles = ["boss"]\n', "two_tools.roles"),
        ('[two_tools]\nnot_applicable = "no"\ncalls = 1\n', "has no other key"),
        ("[two_tools\n", "syntax"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "plugin.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_expectations(harness_with(tmp_path), None)
    assert message in str(caught.value)
    assert str(tmp_path / "plugin.toml") in str(caught.value)
