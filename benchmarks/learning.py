"""What is learned from equally many rollouts: by GRPO, PPO and SFT, mixed and in one harness alone.

Each run is `mixharness train configs/quickstart.toml` with the settings of its arm. All arms of a
seed go on from one cold start, whose run is the arm `cold_start`. What that policy scores is
measured twice a seed, before and after the steps of the arm at learning rate 0, and all gains of
the seed are over the mean of both; that arm's own row compares the two. A run that is done is not
made again; what is needed of it is kept in learning.json in the folder of the runs. A run takes
about 6 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from mixharness.rollout.store import RunStore, write_atomically
from mixharness.stats import Scores, mean_interval, paired_difference_over_seeds
from mixharness.types import GroupKey

RUN_FILE = "configs/quickstart.toml"
COLD_START, BASELINE, UNTRAINED = "cold_start", "learning_rate_0", "untrained"
TWICE = "trainer.tasks_per_step=16"  # as many groups in one harness as a mixed run has in two
ARMS: dict[str, tuple[str, ...]] = {
    COLD_START: ("--set", "trainer.steps=0", "--set", "task_source.2.count=1"),  # no evaluation
    BASELINE: ("--set", "trainer.lr=0"),
    "grpo": (),
    "ppo": (
        *("--optimizer", "ppo", "--set", "trainer.group_size=1"),
        *("--set", "trainer.tasks_per_step=32"),
    ),
    "sft": ("--optimizer", "sft"),
    "agentloop_alone": ("--leave-out", "claude_code", "--set", TWICE),
    "claude_code_alone": ("--leave-out", "agentloop", "--set", TWICE),
    # The same model and tokenizer without what the demonstrations teach.
    UNTRAINED: (
        *("--set", "cold_start.lr=1e-12", "--set", "cold_start.epochs=1"),
        *("--set", "task_source.0.count=60"),  # as many as the tokenizer is trained on
    ),
}
HARNESSES = ("agentloop", "claude_code")
Run = dict[str, Any]
"""What is kept of a run: `scores` by harness and stage, a character a held-out task, and costs."""


def train(arm: str, seed: int, folder: Path) -> Run:
    """Make one run, or finish it, and return what is kept of it.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    run_dir = folder / f"{arm}-{seed}"
    if not (run_dir / "summary.json").exists():
        program = Path(sys.executable).with_name("mixharness")
        command = [str(program), "train", RUN_FILE, *ARMS[arm]]
        command += ["--seed", str(seed), "--run-dir", str(run_dir)]
        command += ["--set", f"eval.before={str(arm == BASELINE).lower()}"]
        if arm not in (COLD_START, UNTRAINED):
            policy = folder / f"{COLD_START}-{seed}" / "policy"
            command += ["--set", f"policy.model={policy}"]
        if run_dir.exists():
            command.append("--resume")
        subprocess.run(command, check=True, stdout=sys.stderr)
    return gathered(run_dir)


def gathered(run_dir: Path) -> Run:
    """Return what is kept of a run folder."""
    store = RunStore(run_dir)
    summary = orjson.loads((run_dir / "summary.json").read_bytes())
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines()
    steps = [orjson.loads(line) for line in lines]
    names = [name for step in steps for name in store.collected(f"step-{step['step']:04d}") or ()]
    trained = [store.load(name) for name in names]
    return {
        "scores": {stage: _scores(store, stage) for stage in ("eval-before", "eval-after")},
        "unique_tasks": len({rollout.key.task_id for rollout in trained}),
        "rollouts": len(trained),
        "failures": sum(rollout.failure is not None for rollout in trained),
        "tokens": sum(figures["tokens"] for figures in summary["harnesses"].values()),
        "value_model_s": round(_total(steps, "time/critic_s") + _total(steps, "time/values_s"), 1),
        "update_s": round(_total(steps, "time/update_s"), 1),
        "wall_s": summary["wall_s"],
        "gradient_cosine": summary["gradient_cosine"],
    }


def _scores(store: RunStore, stage: str) -> dict[str, str]:
    """Return each harness's scores in the order of the tasks; `-` is a task without one."""
    rollouts = [store.load(name) for name in store.collected(stage) or ()]
    score_of = {r.key: "01"[r.reward == 1.0] for r in rollouts if r.usable}
    tasks = sorted({rollout.key.task_id for rollout in rollouts})
    return {
        harness: "".join(score_of.get(GroupKey(task, harness), "-") for task in tasks)
        for harness in HARNESSES
    }


def _total(steps: Sequence[Mapping[str, Any]], key: str) -> float:
    return sum(step.get(key) or 0.0 for step in steps)


def tables(data: Mapping[str, Mapping[str, Run]]) -> dict[str, Any]:
    """Return what each arm gained, what it cost, and how arms compare; 95 % intervals."""
    return {
        "gains": {
            arm: {h: _gain(arm, data, h) for h in HARNESSES} | _costs(runs)
            for arm, runs in data.items()
            if arm not in (COLD_START, UNTRAINED)
        },
        "mixed_minus_alone": {
            harness: _compared(data, f"{harness}_alone", "grpo", harness) for harness in HARNESSES
        },
        "trained_in_tested_in": {
            arm: {h: _mean(_rows(runs.values(), "after", h)) for h in HARNESSES}
            for arm, runs in data.items()
            if arm in ("grpo", "agentloop_alone", "claude_code_alone")
        },
        "cold_start_minus_none": {h: _compared(data, UNTRAINED, "grpo", h) for h in HARNESSES},
    }


def _gain(arm: str, data: Mapping[str, Mapping[str, Run]], harness: str) -> dict[str, Any] | None:
    """Return what an arm gained in the seeds whose baseline is measured, over one and over both."""
    seeds = _shared_seeds(data, BASELINE, arm)
    if not seeds:
        return None
    measured = [data[BASELINE][seed] for seed in seeds]
    first, second = (_rows(measured, stage, harness) for stage in ("before", "after"))
    before = first if arm == BASELINE else list(map(_both, first, second))
    after = _rows([data[arm][seed] for seed in seeds], "after", harness)
    means = {"before": _mean(before), "after": _mean(after)}
    return means | _difference(before, after) | {"over_first": _difference(first, after)}


def _both(first: Scores, second: Scores) -> Scores:
    """Return the samples of two measurements of one policy."""
    return {task: [*first.get(task, ()), *second.get(task, ())] for task in {**first, **second}}


def _compared(
    data: Mapping[str, Mapping[str, Run]], first: str, second: str, harness: str
) -> dict[str, float] | None:
    """Return how much better the second arm ends than the first, in the seeds that both have."""
    seeds = _shared_seeds(data, first, second)
    if not seeds:
        return None
    rows = [_rows([data[arm][s] for s in seeds], "after", harness) for arm in (first, second)]
    return {"seeds": len(seeds)} | _difference(*rows)


def _shared_seeds(data: Mapping[str, Mapping[str, Run]], first: str, second: str) -> list[str]:
    return sorted(data.get(first, {}).keys() & data.get(second, {}).keys())


def _difference(before: Sequence[Scores], after: Sequence[Scores]) -> dict[str, float]:
    found = paired_difference_over_seeds(before, after)
    return {"diff": found.mean, "low": found.low, "high": found.high, "tasks": found.n}


def _rows(runs: Iterable[Run], stage: str, harness: str) -> list[Scores]:
    """Return the held-out scores of each run by task."""
    texts = [run["scores"][f"eval-{stage}"][harness] for run in runs]
    return [
        {str(task): [float(score)] for task, score in enumerate(text) if score != "-"}
        for text in texts
    ]


def _mean(rows: Sequence[Scores]) -> float:
    return fmean(mean_interval(row).mean for row in rows)


def _costs(runs: Mapping[str, Run]) -> dict[str, float]:
    """Return what a run took, as a mean over the seeds."""
    keys = ("unique_tasks", "rollouts", "failures", "tokens", "value_model_s", "update_s", "wall_s")
    means = {key: round(fmean(run[key] for run in runs.values()), 1) for key in keys}
    return {"seeds": len(runs)} | means


def measure(arms: Sequence[str], seeds: Sequence[int], folder: Path) -> dict[str, dict[str, Run]]:
    """Make the runs that are not done, one after the other, and return all that are."""
    file = folder / "learning.json"
    data: dict[str, dict[str, Run]] = orjson.loads(file.read_bytes()) if file.exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for arm in arms:
            if str(seed) not in data.get(arm, {}):
                data.setdefault(arm, {})[str(seed)] = train(arm, seed, folder)
                write_atomically(file, orjson.dumps(data, option=orjson.OPT_INDENT_2))
    return data


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    args = parser.parse_args()
    print(json.dumps(tables(measure(args.arms, args.seeds, args.runs)), indent=2))


if __name__ == "__main__":
    main()
