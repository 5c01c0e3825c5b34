"""Shows that the tests of the twelve rules can fail: breaks one line at a time, in a copy.

    python tests/mutate.py [RULE ...]     run the mutations of these rules, by default all
    python tests/mutate.py --table        print the table of tests/README.md

A copy, so that neither a crash nor a second terminal ever meets a broken tree.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
SKIPPED = shutil.ignore_patterns(
    ".*", "runs", "shared", "__pycache__", "*.egg-info", "node_modules"
)
FAILED = 1  # pytest's exit code for "a test failed", and for nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One line of one file, the test that must notice, and what that test said."""

    rule: int
    test: str
    file: str
    old: str
    new: str
    failure: str = ""

    def apply(self, root: Path) -> str:
        """Break the file under `root` and return its text from before."""
        path = root / self.file
        before = path.read_text()
        path.write_text(before.replace(self.old, self.new))
        return before

    @property
    def row(self) -> str:
        test = self.test.replace("tests/rules/", "").replace("::", " :: ")
        cells = (test, self.file, self.old, self.new, self.failure)
        return f"| {self.rule} | " + " | ".join(f"`{cell}`" for cell in cells) + " |"


def load() -> list[Mutation]:
    data = tomllib.loads((ROOT / "tests/mutations.toml").read_text())
    return [Mutation(**entry) for entry in data["mutation"]]


def table(mutations: Iterable[Mutation]) -> str:
    head = "| rule | test | file | line | becomes | failure seen |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(mutation.row for mutation in mutations)


def environment(root: Path) -> dict[str, str]:
    """Return an environment in which the sources under `root` hide the installed ones."""
    sources = sorted(str(path) for path in root.glob("**/src") if "fixtures" not in path.parts)
    temporary = str(root.with_name("tmp"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources), "TMPDIR": temporary}


def kill_left_overs(root: Path) -> None:
    """Kill what a broken sandbox left running; its mark names a folder in our TMPDIR."""
    mark = f"MIXHARNESS_SANDBOX={root.with_name('tmp')}"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(f"{key}={value}".startswith(mark) for key, value in process.environ().items()):
                process.kill()


def check_shadowing(root: Path) -> None:
    names = sorted(path.parent.name for path in root.glob("**/src/mixharness*/__init__.py"))
    names = [name for name in names if name != "mixharness_parrot"]
    code = f"import importlib\nfor n in {names}: print(importlib.import_module(n).__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(root),
        capture_output=True,
        text=True,
        check=True,
    )
    installed = [f for f in done.stdout.split() if root not in Path(f).parents]
    if installed:
        sys.exit(f"the copy does not hide {', '.join(installed)}")


def run_tests(root: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run tests in the copy; return pytest's exit code and the first line of the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=root, env=environment(root), capture_output=True, text=True, check=False
    )
    said = re.search(r"^(?:E|\s*\|)\s+((?:\w*Error|assert|Failed).*)$", done.stdout, re.MULTILINE)
    return done.returncode, said[1] if said else done.stdout[-300:]


def main(arguments: list[str]) -> int:
    mutations = load()
    if "--table" in arguments:
        print(table(mutations))
        return 0
    chosen = [m for m in mutations if not arguments or str(m.rule) in arguments]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mixharness-mutate-") as folder:
        Path(folder).chmod(0o711)
        Path(folder, "tmp").mkdir(mode=0o711)
        root = Path(shutil.copytree(ROOT, Path(folder, "copy"), ignore=SKIPPED))
        check_shadowing(root)
        code, said = run_tests(root, dict.fromkeys(m.test for m in chosen))
        if code:
            sys.exit(f"the tests must pass before anything is broken: {said}")
        for mutation in chosen:
            before = mutation.apply(root)
            code, said = run_tests(root, [mutation.test])
            kill_left_overs(root)
            (root / mutation.file).write_text(before)
            survivors += code != FAILED
            verdict = "noticed" if code == FAILED else f"NOT NOTICED (pytest exit {code})"
            print(f"rule {mutation.rule:2} {verdict}: {mutation.new}\n    {said}", flush=True)
    print(f"{len(chosen)} mutations, {survivors} not noticed")
    return survivors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
