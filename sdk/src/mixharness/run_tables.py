"""The framework's own run-file tables, and how a table is checked. Parts' tables are the parts'."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from mixharness.plugins import did_you_mean
from mixharness.tree.prune import Pruning
from mixharness.types import Limits

Problem = tuple[str, str]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
FORBIDDEN_SAMPLING = frozenset(
    {"top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty"}
    | {"frequency_penalty", "length_penalty", "logit_bias", "grammar", "guided_decoding"}
    | {"structured_outputs", "bad_words"}
)
DISTRIBUTION_CONTRACT = (
    "not allowed: every log-prob is of softmax(logits / temperature) over the full vocabulary, "
    "so nothing else may shape sampling"
)


class Table(BaseModel):
    """A run-file table of the framework; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TopLevel(Table):
    """Keys of a run file that stand above all tables."""

    name: str = Field("", pattern=NAME_PATTERN)
    """Of the run and its folder; by default the file's name."""
    seed: int = Field(0, ge=0)
    """Everything random in a run comes from it."""


class SamplingTable(Table):
    """`[sampling]`: how the policy is sampled in every call."""

    temperature: float = Field(1.0, gt=0)
    max_tokens: int = Field(512, gt=0)
    """Longest answer in tokens; a harness may ask for less."""


class RolloutTable(Table):
    """`[rollout]`: how rollouts are run."""

    concurrency: int = Field(8, gt=0)
    """Rollouts at a time."""
    max_infra_retries: int = Field(2, ge=0)
    """Fresh attempts after an infrastructure failure, and gradings where a sandbox fails."""
    max_refills: int = Field(1, ge=0)
    """Rounds of fresh rollouts that fill a group again after some of it ended excluded."""
    grade_limit_s: float = Field(120.0, gt=0)
    """Longest time one call of a verifier may take, its sandbox's start included."""
    on_limit: Literal["score", "zero"] = "score"
    """What a rollout that hit a limit of the policy's is worth: its score, or zero."""
    render_rules: tuple[str, ...] = ()
    """Built-in rules or the harnesses', by name, that change what the policy reads (tokens.md)."""
    port: int = Field(0, ge=0, le=65535)
    """Port of the proxy on the loopback interface; 0 takes a free one."""


class PruningTable(Table):
    """`[pruning]`: which calls of a rollout are trained."""

    branch_credit: str = "exclude"
    """Of live calls other than the main agent's (sub-agents, compactions): `exclude` trains none,
    `share` trains them with the rollout's advantage, `discount(w)` with w times it, 0 < w <= 1."""
    max_regenerations: int = Field(16, ge=0)
    """Answers sampled anew that a rollout may have; one with more is dropped."""

    @field_validator("branch_credit", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        credit_of(value)
        return value

    def pruning(self) -> Pruning:
        """Return the same as pruning takes it."""
        return Pruning(
            branch_credit=credit_of(self.branch_credit),
            max_regenerations=self.max_regenerations,
        )


def credit_of(value: object) -> float:
    """Return the share of the advantage that `exclude`, `share` or `discount(w)` stands for.

    Raises:
        ValueError: it is none of them, or w is not in (0, 1].
    """
    if value in ("exclude", "share"):
        return float(value == "share")
    found = re.fullmatch(r"discount\(\s*(\d*\.?\d+)\s*\)", str(value))
    if found and 0 < float(found[1]) <= 1:
        return float(found[1])
    raise ValueError(f'{value!r} is none of "exclude", "share", "discount(w)" with 0 < w <= 1')


class NameKeys(Table):
    """Framework keys of every part."""

    name: str


class LabelKeys(NameKeys):
    """Framework keys of a verifier."""

    label: str | None = Field(None, pattern=NAME_PATTERN)
    """The verifier name of tasks that this one answers to; by default its own."""


class HarnessKeys(LabelKeys):
    """Framework keys of a harness."""

    label: str | None = Field(None, pattern=NAME_PATTERN)
    """Name of this entry in groups, metrics and tables; by default the harness name."""
    weight: float = Field(1.0, ge=0)
    """Share of a training step's groups, relative to the other harnesses. Where all weigh the same,
    every task is tried in each; with 0 a harness is evaluated in and never trained in."""
    groups: int | None = Field(None, ge=0)
    """Groups in this harness per training step, in place of a share by weight; then every trained
    harness needs it, and `trainer.tasks_per_step` is not read."""
    limits: dict[str, Any] = Field(default_factory=dict)
    """Overrides of `[limits]` for this harness."""


class TaskSourceKeys(NameKeys):
    """Framework keys of a task source."""

    use: Literal["train", "eval", "cold_start"] = "train"
    """What the tasks are for."""


KEYS: dict[str, type[NameKeys]] = {
    "harness": HarnessKeys,
    "task_source": TaskSourceKeys,
    "verifier": LabelKeys,
}
"""Framework keys by kind; the other kinds have `name` only."""

LISTS = ("harness", "task_source", "verifier", "tracker")
SINGLES = ("sandbox", "engine", "optimizer")
DEFAULTS: Mapping[str, Any] = {"sandbox": {"name": "local"}, "tracker": [{"name": "jsonl"}]}


def _limits_table() -> type[Table]:
    hints = get_type_hints(Limits)
    keys: dict[str, Any] = {
        f.name: (Annotated[hints[f.name], Field(gt=0)], f.default) for f in fields(Limits)
    }
    return create_model("LimitsTable", __base__=Table, **keys)


LimitsTable = _limits_table()
"""`[limits]`, derived from `types.Limits`; all above zero."""


ModelT = TypeVar("ModelT", bound=BaseModel)


def check(
    model: type[ModelT],
    data: Any,
    prefix: str,
    problems: list[Problem],
    more_keys: Iterable[str] = (),
) -> ModelT | None:
    """Validate one table; on failure add problems (path first) and return None.

    Args:
        model: what the table must be.
        data: the table.
        prefix: its path in the run file.
        problems: what is found is appended here.
        more_keys: further keys to offer as "did you mean".
    """
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            where = ".".join(
                [prefix, *map(str, error["loc"])] if prefix else map(str, error["loc"])
            )
            problems.append((where, _message(model, error, more_keys)))
        return None


def _message(model: type[BaseModel], error: Any, more_keys: Iterable[str]) -> str:
    kind, loc = error["type"], error["loc"]
    if kind == "extra_forbidden":
        key = str(loc[-1])
        known = [*_keys_at(model, loc[:-1]), *more_keys]
        return "unknown key" + did_you_mean(key, known).replace(". Did", "; did", 1)
    if kind == "missing":
        return "required"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "must")
    return f"{error['input']!r} {message}" if message.startswith("must") else message


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the model nested at `loc`, as far as plain annotations tell."""
    for step in loc:
        field = model.model_fields.get(str(step))
        inner = field.annotation if field is not None else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
        elif not isinstance(step, int):
            return []
    return list(model.model_fields)
