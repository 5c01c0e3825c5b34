import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mixharness.proxy.log import CallLog
from mixharness.rollout.store import RunStore
from mixharness.types import (
    CallRole,
    Delivery,
    Failure,
    FailureKind,
    GroupKey,
    ModelCall,
    Rollout,
    Score,
)
from mixharness.viewer.charts import training_charts
from mixharness.viewer.progress import RunProgress, summary_table
from mixharness.viewer.report import RunData, pick_rollouts, read_run, render_report, write_report
from mixharness.viewer.tables import exclusion_table
from mixharness.viewer.text import decode, sampled_html
from mixharness.viewer.tree_view import rollout_view

ROW = {
    "before": 0.25,
    "after": 0.5,
    "diff": 0.25,
    "diff_low": 0.125,
    "diff_high": 0.375,
    "held_out_tasks": 128,
    "rollouts": 1280,
    "failures": 2,
    "bridge_rate": 1.0,
    "delivered_fraction": 0.9,
    "unexplained_loss": 0.0,
}
SUMMARY = {"harnesses": {"agentloop": ROW, "claude_code": ROW}, "wall_s": 90.0, "steps": 2}
STEP = {
    "step": 1,
    "stage": "grpo",
    "reward/agentloop": 0.4,
    "reward/claude_code": 0.3,
    "contrast/agentloop": 0.75,
    "entropy": 1.2,
    "logp_gap/mean_abs": 1e-5,
    "failures/agentloop": 2,
    "failures_by_kind": {"max_turns": 2},
    "loss": float("nan"),
}


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = byte_tokenizer()


def call(index: int, environment: str, sampled: str, **fields: object) -> ModelCall:
    ids = tuple(TOKENIZER.encode(sampled).ids)
    return ModelCall(
        id=f"c{index}",
        rollout_id="r",
        index=index,
        environment_ids=tuple(TOKENIZER.encode(environment).ids),
        sampled_ids=ids,
        logprobs=(-2.0,) * len(ids),
        **{"delivery": Delivery.DELIVERED, **fields},
    )


def rollout(*calls: ModelCall, **fields: object) -> Rollout:
    values = {"id": "r", "key": GroupKey("task-1", "agentloop"), "score": Score(value=1.0)}
    return Rollout(calls=calls, **{**values, **fields})


CALLS = (
    call(0, "<b>read & do</b>", "look"),
    call(1, " side job", "title", role=CallRole.AUXILIARY),
    call(2, " seen", "done", parent_call="c0", parent_len=20, continues=("c0",)),
)


def test_the_report_needs_no_network(tmp_path: Path):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(STEP) + "\n")
    page = render_report(read_run(tmp_path), [rollout(*CALLS)])
    assert not re.search(r"<link|<script[^>]+src=|<img|@import|<iframe", page.split("<body>")[1])
    assert page.count("plotly.js v") == 1
    assert "<td>[+0.125, +0.375]</td>" in page
    assert '<td class="good">+0.250</td>' in page


def test_excluded_rollouts_are_compared_where_there_are_any():
    share = {"rollouts": 7, "reward": 0.5, "calls": 3.0, "tokens": 1200.0}
    none = {"rollouts": 0, "reward": None, "calls": None, "tokens": None}
    longer = {"rollouts": 2, "reward": None, "calls": 9.5, "tokens": 4000.4}
    rows = {
        "agentloop": {**ROW, "kept": share, "excluded": longer},
        "codex": {**ROW, "kept": share, "excluded": none},
    }
    table = exclusion_table(rows)
    assert "<td>7 / 2</td><td>0.500 / –</td><td>3.0 / 9.5</td><td>1,200 / 4,000</td>" in table
    assert "codex" not in table
    assert exclusion_table({"codex": rows["codex"], "old": ROW}) == ""


def test_a_folder_without_anything_still_gives_a_page(tmp_path: Path):
    page = write_report(tmp_path).read_text()
    assert "The run has no summary yet." in page
    assert "No rollout is stored in this folder." in page


def store_rollout(store: RunStore, stored: Rollout) -> None:
    log = CallLog(store.begin(stored.id))
    for each in stored.calls:
        log.cancelled(each)
        log.delivery(each.id, each.delivery)
    log.close()
    store.save(stored)


def test_the_drawn_rollout_of_a_harness_is_of_the_best_and_latest(tmp_path: Path):
    store = RunStore(tmp_path)
    store_rollout(store, rollout(*CALLS, id="poor", score=Score(value=0.0), policy_version=9))
    store_rollout(store, rollout(*CALLS, id="old", policy_version=1))
    store_rollout(store, rollout(*CALLS, id="new", policy_version=2))
    other = {"key": GroupKey("task-1", "claude_code"), "score": None}
    failure = Failure(kind=FailureKind.WALL_CLOCK)
    store_rollout(store, rollout(CALLS[0], id="only", failure=failure, **other))
    store.begin("no-calls")
    store.save(rollout(id="no-calls", failure=Failure(kind=FailureKind.SANDBOX_START), **other))
    picked = pick_rollouts(store)
    assert [each.id for each in picked] == ["new", "only"]
    assert picked[0].calls == CALLS
    page = write_report(tmp_path).read_text()
    assert "rollout new" in page
    assert "failure wall_clock" in page


def test_charts_leave_out_what_was_not_measured():
    text = "".join(training_charts([STEP], SUMMARY))
    assert "Entropy" in text
    assert "max_turns" in text
    assert "Gradient norm" not in text
    assert "NaN" not in text


def test_a_run_without_failures_says_so():
    assert "no failures" in "".join(training_charts([STEP | {"failures_by_kind": {}}], {}))


def test_each_node_is_drawn_by_kind_and_says_why_it_is_not_trained():
    view = rollout_view(rollout(*CALLS), TOKENIZER)
    assert view.count('<rect class="trained"') == 2
    assert view.count('<rect class="untrained"') == 1
    assert "not trained: role_auxiliary" in view
    assert "8 of 13 sampled tokens trained" in view
    for target in re.findall(r'href="#([^"]+)"', view):
        assert f'id="{target}"' in view


def test_text_of_a_rollout_cannot_become_markup():
    view = rollout_view(rollout(*CALLS), TOKENIZER)
    assert "&lt;b&gt;read &amp; do&lt;/b&gt;" in view
    assert "<b>read" not in view


def test_a_failed_rollout_without_calls_is_drawn_too():
    failure = Failure(kind=FailureKind.HARNESS_START, detail="no such program")
    view = rollout_view(rollout(score=None, failure=failure), None)
    assert "no score · failure harness_start: no such program" in view


def test_a_character_of_several_tokens_stays_whole():
    ids = TOKENIZER.encode("a✓b").ids
    assert len(ids) == 5
    html = sampled_html(ids, [-1.0] * 5, TOKENIZER)
    assert re.sub(r"<[^>]+>", "", html) == "a✓b"


def test_without_a_tokenizer_the_ids_are_shown():
    assert decode([5, 7], None) == "5 7"
    assert RunData(name="x", summary={}, metrics=[]).tokenizer is None


def test_progress_writes_one_plain_line_per_step_when_piped():
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=80)
    with RunProgress(total_steps=2, harnesses=["agentloop"], console=console) as progress:
        progress.stage("cold start")
        progress.add_calls(3)
        progress.step(STEP)
    lines = out.getvalue().splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        "cold start",
        "step 1/2  reward agentloop 0.400  entropy 1.200  calls 3  failures 2  left 0:00",
    ]


@pytest.mark.parametrize("steps", [0, 2])
def test_progress_at_a_terminal_shows_the_step(steps: int):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with RunProgress(total_steps=2, harnesses=["agentloop"], console=console) as progress:
        for _ in range(steps):
            progress.step(STEP)
    assert f"step {steps}/2" in out.getvalue()


def test_the_summary_table_has_a_row_per_harness():
    console = Console(file=io.StringIO(), width=120)
    console.print(summary_table(SUMMARY))
    text = console.file.getvalue()
    assert "agentloop" in text
    assert "+0.125 to +0.375" in text
