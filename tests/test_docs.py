"""Pages that can drift from the code are compared with it."""

import inspect
import re
import runpy
from pathlib import Path

import pytest

from mixharness import errors, hookspecs
from mixharness.cli.main import build_app
from mixharness.config import load_run_file
from mixharness.plugins import KINDS, load_plugins
from mixharness.proxy.rulebook import MATCH_RULES, RENDER_RULES
from mixharness.testing import contracts
from mixharness.types import FailureKind

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md", *ROOT.glob("README.md")]


@pytest.mark.parametrize("hook", [hook for hook, _ in KINDS.values()])
def test_every_hook_is_documented_with_its_signature(hook: str) -> None:
    section = (DOCS / "hooks.md").read_text().partition(f"## {hook}\n")[2].partition("\n## ")[0]
    signature = inspect.signature(getattr(hookspecs, hook))
    returns = signature.return_annotation
    assert list(signature.parameters) == []
    assert f"def {hook}() -> {returns}" in section


def test_the_page_has_no_other_hooks() -> None:
    hooks = re.findall(r"^## (register_\w+)", (DOCS / "hooks.md").read_text(), re.MULTILINE)
    assert sorted(hooks) == sorted(hook for hook, _ in KINDS.values())
    assert sorted(hooks) == sorted(name for name in vars(hookspecs) if name.startswith("register_"))


def test_every_kind_has_a_contract_that_the_page_names() -> None:
    page = (DOCS / "hooks.md").read_text()
    for kind in KINDS:
        contract = "".join(word.title() for word in kind.split("_")) + "Contract"
        assert contract in contracts.__all__
        assert f"`{contract}`" in page


def test_the_config_page_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    render = runpy.run_path(str(DOCS / "render.py"))
    monkeypatch.setenv("MIXHARNESS_PLUGINS", render["OURS"])
    assert (DOCS / "config.md").read_text() == render["render"](), "run `make docs`"


def test_every_error_and_failure_is_documented() -> None:
    page = (DOCS / "errors.md").read_text()
    tree = [x for x in vars(errors).values() if inspect.isclass(x) and issubclass(x, Exception)]
    assert len(tree) == 11
    assert [error.__name__ for error in tree if f"| `{error.__name__}` |" not in page] == []
    assert [kind for kind in FailureKind if f"`{kind}`" not in page] == []


def test_every_built_in_rule_is_documented() -> None:
    section = (DOCS / "tokens.md").read_text().partition("## Histories")[2]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == [rule.name for rule in (*MATCH_RULES, *RENDER_RULES)]


def test_the_tutorial_is_the_plugin_that_is_tested() -> None:
    page = (DOCS / "first-plugin.md").read_text()
    parrot = ROOT / "tests/fixtures/parrot"
    for file in (*parrot.rglob("*.py"), parrot / "pyproject.toml"):
        if "__pycache__" not in file.parts:
            assert file.read_text() in page, file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_and_commands_that_pages_name_exist(page: Path) -> None:
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    app = build_app(load_plugins())
    commands = {command.name for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    for command in re.findall(r"`mixharness ([a-z]+)", text):
        assert command in commands, command


def test_the_readme_shows_the_verifier_of_the_quickstart() -> None:
    source = ROOT / "plugins/office/src/mixharness_office/verifier.py"
    assert f"```python\n{source.read_text()}```" in (ROOT / "README.md").read_text()
    assert len(source.read_text().split("\n\n\n")[1].splitlines()) <= 20


def test_the_table_of_sandboxes_is_what_their_tests_declare() -> None:
    render = runpy.run_path(str(DOCS / "render.py"))
    page = (DOCS / "sandboxes.md").read_text()
    assert "| `bubblewrap` |" in page
    assert page == render["with_sandbox_table"](page), "run `make docs`"


def test_the_run_files_that_pages_name_are_right() -> None:
    registry = load_plugins()
    for file in (ROOT / "configs").glob("*.toml"):
        assert load_run_file(file, registry).harnesses
