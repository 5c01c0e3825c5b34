"""Import arrows and budgets (CONTRIBUTING.md). Reads source; starts an interpreter per plugin."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SDK = ROOT / "sdk/src/mixharness"
TRAINER = ROOT / "trainer/src/mixharness_trainer"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/src/mixharness_*/__init__.py"))
HEAVY = {"torch", "transformers", "accelerate", "vllm", "ray"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def sources(*folders: Path) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


ALL = sources(SDK, TRAINER, *PLUGINS)


def imports(file: Path) -> Iterator[str]:
    """Yield what a file imports at run time; `if TYPE_CHECKING:` does not count."""
    waiting: list[ast.AST] = [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)


def importers(files: list[Path], *names: str) -> list[str]:
    def hit(module: str) -> bool:
        return any(module == name or module.startswith(f"{name}.") for name in names)

    return sorted(
        f"{file.relative_to(ROOT)}: {module}"
        for file in files
        for module in set(imports(file))
        if hit(module)
    )


def test_there_is_something_to_check() -> None:
    assert {path.name for path in PLUGINS} >= {
        "mixharness_agentloop",
        "mixharness_claude_code",
        "mixharness_codex",
    }
    assert len(ALL) > 30


def test_the_sdk_imports_neither_trainer_nor_plugins() -> None:
    assert importers(sources(SDK), "mixharness_trainer", *(p.name for p in PLUGINS)) == []


def test_nothing_imports_a_plugin() -> None:
    for plugin in PLUGINS:
        others = [file for file in ALL if plugin not in file.parents]
        assert importers(others, plugin.name) == []


def test_plugins_do_not_import_the_trainer() -> None:
    assert importers(sources(*PLUGINS), "mixharness_trainer") == []


def test_torch_lives_in_the_trainer() -> None:
    assert importers(sources(SDK, *PLUGINS), *HEAVY) == []


def test_testing_is_imported_by_no_runtime_module() -> None:
    runtime = [file for file in ALL if SDK / "testing" not in file.parents]
    assert importers(runtime, "mixharness.testing") == []


LIGHT = ["mixharness", "mixharness.cli", "mixharness_trainer.plugin", "mixharness_trainer.commands"]


@pytest.mark.parametrize("module", [*LIGHT, *(plugin.name for plugin in PLUGINS)])
def test_top_modules_are_light(module: str) -> None:
    code = f"import sys, {module}; print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_are_small() -> None:
    lengths = {file: len(file.read_text().splitlines()) for file in ALL}
    assert {f.name: n for f, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_functions_are_small() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file in ALL
        for node in functions(file)
        if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert found == []


def test_everything_is_annotated() -> None:
    found = []
    for file in ALL:
        for node in functions(file):
            spec = node.args
            args = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
            args += [arg for arg in (spec.vararg, spec.kwarg) if arg]
            bare = [a.arg for a in args if a.annotation is None and a.arg not in ("self", "cls")]
            if bare or node.returns is None:
                found.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name} {bare}")
    assert found == []


def test_no_hasattr_and_no_utils() -> None:
    assert [f for f in ALL if "hasattr(" in f.read_text()] == []
    assert [f for f in ALL if f.stem in ("utils", "helpers", "common")] == []


def test_every_module_says_what_lives_in_it() -> None:
    assert [f for f in ALL if not ast.get_docstring(ast.parse(f.read_text()))] == []


PYPROJECTS = [ROOT / "sdk", ROOT / "trainer", *(plugin.parents[1] for plugin in PLUGINS)]


def test_one_version_everywhere() -> None:
    projects = [tomllib.loads((p / "pyproject.toml").read_text())["project"] for p in PYPROJECTS]
    (version,) = {project["version"] for project in projects}
    pins = {dep for p in projects for dep in p["dependencies"] if dep.startswith("mixharness=")}
    assert pins == {f"mixharness=={version}"}
    assert f'__version__ = "{version}"' in (SDK / "__init__.py").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_packages_are_typed_and_no_import_name_is_a_folder_of_the_root() -> None:
    for package in (SDK, TRAINER, *PLUGINS):
        assert (package / "py.typed").exists()
        assert not (ROOT / package.name).exists()


def test_each_dependency_has_its_reason() -> None:
    reasons = (ROOT / "CONTRIBUTING.md").read_text().partition("## Dependencies")[2]
    for path in PYPROJECTS:
        for dep in tomllib.loads((path / "pyproject.toml").read_text())["project"]["dependencies"]:
            name = dep.split("[")[0].split(">")[0].split("=")[0]
            assert name.startswith("mixharness") or name in reasons, dep
