"""The run file: all problems at once, framework keys, overrides."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from mixharness import ConfigError, Limits
from mixharness.config import RunConfig, load_run_file, parse_setting
from mixharness.plugins import Registry, load_plugins
from mixharness.testing import doubles_plugin
from mixharness.tree import Pruning

GOOD = """
seed = 3
[[harness]]
name = "echo"
label = "slow"
weight = 2.0
limits = { max_turns = 4 }
[[harness]]
name = "echo"
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
use = "eval"
[engine]
name = "scripted"
turns = ["hello"]
[limits]
agent_s = 20
"""


class TrainerTable(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: int = 10


class StrictTable(BaseModel):
    steps: int


@pytest.fixture
def registry() -> Registry:
    found = load_plugins(doubles_plugin, installed=False)
    module: Any = ModuleType("commands")
    module.TABLES = {"trainer": TrainerTable, "strict": StrictTable}
    found.commands["trainer"] = module
    return found


@pytest.fixture
def load(tmp_path: Path, registry: Registry) -> Any:
    def load(text: str, **overrides: Any) -> RunConfig:
        path = tmp_path / "mixed.toml"
        path.write_text(text)
        named = {key.replace("__", "."): value for key, value in overrides.items()}
        return load_run_file(path, registry, named)

    return load


def problems(load: Any, text: str, **overrides: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as info:
        load(text, **overrides)
    return dict(info.value.problems)


def test_framework_keys_are_taken_off(load: Any) -> None:
    config = load(GOOD)
    slow, echo = config.harnesses
    assert (slow.label, slow.weight, slow.name) == ("slow", 2.0, "echo")
    assert (echo.label, echo.weight) == ("echo", 1.0)
    assert slow.limits == Limits(agent_s=20, max_turns=4)
    assert echo.limits == Limits(agent_s=20)
    assert config.task_sources[0].use == "eval"
    assert config.name == "mixed"
    assert config.seed == 3


def test_sandbox_and_tracker_have_defaults_and_optimizer_is_optional(load: Any) -> None:
    config = load(GOOD)
    assert config.sandbox.name == "local"
    assert [spec.name for spec in config.trackers] == ["jsonl"]
    assert config.optimizer is None


def test_all_problems_come_at_once(load: Any) -> None:
    found = problems(
        load,
        """
sed = 1
[[harness]]
name = "ehco"
[[harness]]
name = "echo"
promt = "x"
wieght = 1
limits = { max_turn = 3 }
[[task_source]]
name = "jsonl"
[sampling]
temperature = -1
top_p = 0.9
[trainer]
stps = 1
""",
    )
    assert found["sed"] == 'unknown key; did you mean "seed"?'
    assert found["harness.0.name"].endswith('Did you mean "echo"?')
    assert found["harness.1.wieght"] == 'unknown key; did you mean "weight"?'
    assert found["harness.1.promt"] == 'unknown key; did you mean "prompt"?'
    assert found["harness.1.limits.max_turn"] == 'unknown key; did you mean "max_turns"?'
    assert found["task_source.0.path"] == "required"
    assert found["sampling.temperature"] == "-1 must be greater than 0"
    assert found["sampling.top_p"].startswith("not allowed: every log-prob is of softmax")
    assert found["trainer.stps"] == 'unknown key; did you mean "steps"?'
    assert found["engine"].startswith("required")


def test_limits_that_are_not_nested_are_refused_where_they_are_set(load: Any) -> None:
    found = problems(load, GOOD, limits__agent_s=900)
    assert list(found) == ["limits", "harness.0.limits"]
    assert found["limits"].startswith("wall_s (900) must exceed agent_s (900): the agent's time")
    found = problems(load, GOOD, harness__0__limits__wall_s=10)
    assert list(found) == ["harness.0.limits"]
    assert found["harness.0.limits"].startswith("wall_s (10) must exceed agent_s (20)")


def test_the_message_has_the_path_first(load: Any) -> None:
    with pytest.raises(ConfigError) as info:
        load(GOOD + "wal_s = 3\n")
    first, second = str(info.value).splitlines()
    assert first.startswith("config error in ")
    assert first.endswith("mixed.toml")
    assert second == '  limits.wal_s  unknown key; did you mean "wall_s"?'


def test_equal_labels_are_refused(load: Any) -> None:
    text = GOOD.replace('label = "slow"', "")
    assert problems(load, text) == {"harness": 'label "echo" is used twice; set `label`'}


def test_a_single_table_where_a_list_is_wanted(load: Any) -> None:
    text = GOOD.replace("[[task_source]]", "[task_source]")
    found = problems(load, text)
    assert found["task_source"] == "must be a list of tables: write [[task_source]]"


def test_render_rules_must_belong_to_a_harness(load: Any) -> None:
    found = problems(load, GOOD + '[rollout]\nrender_rules = ["drop_header"]\n')
    assert found == {
        "rollout.render_rules.0": 'no harness of this run has a render rule "drop_header". '
        'Did you mean "drop_billing_header"?'
    }


def test_every_harness_has_the_built_in_render_rules(load: Any) -> None:
    config = load(GOOD + '[rollout]\nrender_rules = ["reattach_reasoning"]\n')
    assert config.rollout.render_rules == ("reattach_reasoning",)


@pytest.mark.parametrize(
    ("text", "credit"),
    [
        ("", 0.0),
        ('branch_credit = "exclude"', 0.0),
        ('branch_credit = "share"', 1.0),
        ('branch_credit = "discount(0.25)"', 0.25),
        ('branch_credit = "discount( 1 )"', 1.0),
    ],
)
def test_branch_credit(load: Any, text: str, credit: float) -> None:
    assert load(GOOD + "[pruning]\n" + text).pruning == Pruning(branch_credit=credit)


@pytest.mark.parametrize(
    "value", ["half", "discount", "discount()", "discount(0)", "discount(1.5)", "discount(-1)", 0.5]
)
def test_a_wrong_branch_credit_is_one_error(load: Any, value: object) -> None:
    found = problems(load, GOOD, pruning__branch_credit=value)
    wanted = 'none of "exclude", "share", "discount(w)" with 0 < w <= 1'
    assert found == {"pruning.branch_credit": f"{value!r} is {wanted}"}


def test_regenerations_cannot_be_negative(load: Any) -> None:
    assert load(GOOD, pruning__max_regenerations=0).pruning.max_regenerations == 0
    found = problems(load, GOOD, pruning__max_regenerations=-1)
    assert found == {"pruning.max_regenerations": "-1 must be greater than or equal to 0"}


@pytest.mark.parametrize("text", ["a = [", "\x00"])
def test_not_toml(load: Any, text: str) -> None:
    assert problems(load, text)["file"].startswith("is not TOML")


def test_no_file(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_run_file(tmp_path / "gone.toml", registry)


def test_overrides_reach_every_level(load: Any) -> None:
    config = load(
        GOOD, seed=9, harness__0__limits__max_turns=7, trainer__steps=2, rollout__concurrency=1
    )
    assert config.seed == 9
    assert config.harnesses[0].limits.max_turns == 7
    assert config.tables["trainer"] == TrainerTable(steps=2)
    assert config.rollout.concurrency == 1
    assert config.raw["trainer"] == {"steps": 2}


def test_another_engine_drops_the_keys_of_the_first(load: Any) -> None:
    text = GOOD.replace('name = "scripted"', 'name = "other"\nweights = "x"')
    engine = load(text, engine__name="scripted", engine__turns=["bye"]).engine
    assert engine.part_config.model_dump(exclude_defaults=True) == {"turns": ("bye",)}


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["echo"], ["echo"]),  # a label goes before a name
        (["slow", "echo"], ["slow", "echo"]),
        (["slow"], ["slow"]),
        ([{"name": "echo", "label": "new"}], ["new"]),
    ],
)
def test_names_stand_for_harnesses(load: Any, names: list[Any], labels: list[str]) -> None:
    config = load(GOOD, harness=names)
    assert [spec.label for spec in config.harnesses] == labels
    weights = {"slow": 2.0, "echo": 1.0, "new": 1.0}
    assert [spec.weight for spec in config.harnesses] == [weights[label] for label in labels]


def test_a_name_stands_for_all_its_harnesses_where_none_has_it_as_a_label(load: Any) -> None:
    text = GOOD.replace('name = "echo"\n[[task', 'name = "echo"\nlabel = "fast"\n[[task')
    assert [spec.label for spec in load(text, harness=["echo"]).harnesses] == ["slow", "fast"]


def test_without_a_file_the_overrides_are_all_there_is(registry: Registry) -> None:
    sources = [{"name": "jsonl", "path": "tasks.jsonl"}]
    overrides = {"harness": ["echo"], "task_source": sources, "engine.name": "scripted"}
    config = load_run_file(None, registry, overrides | {"engine.turns": ["hello"]})
    assert (config.name, config.harnesses[0].name) == ("rollout", "echo")
    with pytest.raises(ConfigError, match="config error in the command line"):
        load_run_file(None, registry, overrides)


def test_an_entry_of_a_list_answers_to_its_number_and_to_its_label(load: Any) -> None:
    config = load(GOOD, harness__slow__weight=0, harness__echo__groups=3, harness__1__weight=1.0)
    slow, echo = config.harnesses
    assert (slow.weight, slow.groups, echo.weight, echo.groups) == (0, None, 1, 3)
    found = problems(load, GOOD, harness__fast__weight=1)
    assert found == {"harness.fast": "no such entry; there are 2: slow, echo"}


@pytest.mark.parametrize("key", ["harness__5__weight", "seed__x", "harness__first__weight"])
def test_an_override_that_leads_nowhere(load: Any, key: str) -> None:
    assert next(iter(problems(load, GOOD, **{key: 1}))) in key.replace("__", ".")


def test_an_absent_table_with_required_keys_fails_only_who_needs_it(load: Any) -> None:
    config = load(GOOD)
    assert config.table("trainer") == TrainerTable(steps=10)
    with pytest.raises(ConfigError, match="strict  required"):
        config.table("strict")
    assert problems(load, GOOD + "[strict]\n") == {"strict.steps": "required"}


@pytest.mark.parametrize(
    ("text", "value"), [("a.b=3", 3), ("a.b=[1, 2]", [1, 2]), ("a.b=x=y", "x=y"), ('a.b="3"', "3")]
)
def test_settings_are_toml_or_text(text: str, value: Any) -> None:
    assert parse_setting(text) == ("a.b", value)


def test_a_setting_needs_an_equals_sign() -> None:
    with pytest.raises(ConfigError, match=r"must look like key\.path=value"):
        parse_setting("seed")
