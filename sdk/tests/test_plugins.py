"""Discovery, guards and clashes."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from mixharness import PluginError, hookimpl, plugins
from mixharness.plugins import load_plugins
from mixharness.testing import EchoHarness, FixedVerifier


def plugin(name: str, **hooks: Any) -> SimpleNamespace:
    return SimpleNamespace(
        __name__=name, **{hook: hookimpl(function) for hook, function in hooks.items()}
    )


def echo(name: str) -> SimpleNamespace:
    def register_harnesses() -> list[type[EchoHarness]]:
        return [EchoHarness]

    return plugin(name, register_harnesses=register_harnesses)


def fake_entry_points(monkeypatch: pytest.MonkeyPatch, **loads: Any) -> None:
    class Entry(EntryPoint):
        def load(self) -> Any:
            loaded = loads[self.name]
            if isinstance(loaded, Exception):
                raise loaded
            return loaded

    found = [Entry(name, f"{name}_module", "mixharness") for name in loads]
    monkeypatch.setattr(
        plugins, "entry_points", lambda *, group: found if group == "mixharness" else []
    )


def test_built_ins_come_through_the_hooks() -> None:
    registry = load_plugins(installed=False)
    assert registry.names("sandbox") == ["bubblewrap", "docker", "local"]
    assert registry.names("engine") == ["scripted"]
    assert registry.names("task_source") == ["clawgym", "jsonl"]
    assert {row.distribution for row in registry.parts()} == {"mixharness"}


def test_a_part_is_found_by_kind_and_name() -> None:
    registry = load_plugins(echo("mine"), installed=False)
    assert registry.get("harness", "echo") is EchoHarness
    assert registry.find("verifier", "echo") is None


def test_an_unknown_part_lists_what_there_is_and_what_was_meant() -> None:
    registry = load_plugins(echo("mine"), installed=False)
    with pytest.raises(PluginError) as info:
        registry.get("harness", "ehco")
    assert str(info.value) == ("no harness named 'ehco'; installed: echo. Did you mean \"echo\"?")


def test_two_plugins_with_one_name_clash_only_when_asked_for() -> None:
    registry = load_plugins(echo("first"), echo("second"), installed=False)
    assert [row.status for row in registry.parts() if row.name == "echo"] == ["clash", "clash"]
    with pytest.raises(PluginError, match=r"first.*and second"):
        registry.find("harness", "echo")


def test_a_misspelt_hook_breaks_the_plugin() -> None:
    def register_harness() -> list[Any]:
        return []

    with pytest.raises(PluginError, match="register_harness"):
        load_plugins(plugin("typo", register_harness=register_harness), installed=False)


@pytest.mark.parametrize(
    ("returned", "message"),
    [([FixedVerifier], "no subclass"), ([object()], "no subclass"), (3, "not iterable")],
)
def test_a_hook_must_return_classes_of_its_kind(returned: Any, message: str) -> None:
    def register_harnesses() -> Any:
        return returned

    with pytest.raises(PluginError, match=message):
        load_plugins(plugin("wrong", register_harnesses=register_harnesses), installed=False)


def test_a_broken_installed_plugin_is_reported_and_fatal_only_when_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_entry_points(monkeypatch, bad=ImportError("no module named gone"), good=echo("good"))
    registry = load_plugins()
    assert registry.get("harness", "echo") is EchoHarness
    assert str(registry.broken["bad"]) == "no module named gone"
    rows = [row.status for row in registry.parts() if row.kind == "plugin"]
    assert rows == ["broken: ImportError: no module named gone"]
    with pytest.raises(PluginError, match=r"plugin 'bad'.*no module named gone") as info:
        registry.get("harness", "bad")
    assert info.value.__cause__ is registry.broken["bad"]
    assert "(broken plugins: bad)" in registry.unknown("harness", "other")


def test_a_raise_in_one_hook_takes_nothing_of_that_plugin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = echo("half")

    @hookimpl
    def register_verifiers() -> Any:
        raise RuntimeError("boom")

    half.register_verifiers = register_verifiers
    fake_entry_points(monkeypatch, half=half, zwhole=echo("zwhole"))
    registry = load_plugins()
    assert list(registry.broken) == ["half"]
    assert registry.get("harness", "echo") is EchoHarness


@pytest.mark.parametrize(("wanted", "names"), [("good", ["echo"]), ("", []), ("other", [])])
def test_the_environment_restricts_installed_plugins(
    monkeypatch: pytest.MonkeyPatch, wanted: str, names: list[str]
) -> None:
    fake_entry_points(monkeypatch, good=echo("good"), bad=ImportError("x"))
    monkeypatch.setenv("MIXHARNESS_PLUGINS", wanted)
    registry = load_plugins()
    assert registry.names("harness") == names
    assert registry.broken == {}


def test_two_registries_share_nothing() -> None:
    load_plugins(echo("mine"), installed=False)
    assert load_plugins(installed=False).names("harness") == []
