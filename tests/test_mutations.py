"""The mutations of tests/mutations.toml fit the code; running them is `python tests/mutate.py`."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MUTATE = runpy.run_path(str(ROOT / "tests/mutate.py"))
MUTATIONS = MUTATE["load"]()


def test_every_rule_has_one() -> None:
    assert {mutation.rule for mutation in MUTATIONS} == set(range(1, 13))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.rule}-{Path(m.file).stem}")
def test_it_changes_one_line_that_exists_and_names_a_test_that_exists(mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert "\n" not in mutation.old + mutation.new
    file, _, name = mutation.test.partition("::")
    assert re.search(rf"^(async )?def {name or 'test_'}", (ROOT / file).read_text(), re.MULTILINE)


def test_the_page_shows_them_with_the_failures_seen() -> None:
    assert [mutation for mutation in MUTATIONS if not mutation.failure] == []
    page = (ROOT / "tests/README.md").read_text()
    assert MUTATE["table"](MUTATIONS) in page, "paste what `python tests/mutate.py --table` prints"
