"""Grades workspaces of ClawGym tasks twice, the way a run does: untouched, and with answers in it.

    python tests/real_tasks/grade_clawgym.py TASKS --count 20 --seed 1 --answers ANSWERS --json

TASKS is a folder of task folders. ANSWERS/TASK_ID/NAME/ holds files to be put into a workspace;
each NAME becomes a column. No model is asked, nothing is kept.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mixharness.builtin.clawgym import ClawGymConfig, ClawGymTasks
from mixharness.builtin.reward_script import RewardScript, RewardScriptConfig
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.plugins import load_plugins
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.grading import Grader
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner, RunnerSettings
from mixharness.sandbox import Workspace
from mixharness.snapshot import copy_tree
from mixharness.testing import EchoHarness
from mixharness.testing.doubles import EchoHarnessConfig
from mixharness.types import GroupKey, Limits, Rollout, Task

UNTOUCHED = "untouched"


@dataclass(frozen=True)
class Graded:
    task: str
    column: str
    scores: tuple[float | None, ...]
    """One per grading; None where there was none."""
    failures: tuple[str, ...]
    seconds: float


async def grade(runner: Runner, task: Task, column: str, answer: Path | None) -> Graded:
    """Grade one workspace twice, each time from the start."""
    scores, failures, started = [], [], time.monotonic()
    for number in (0, 1):
        slot = HarnessSlot(
            label=column, harness=EchoHarness(EchoHarnessConfig()), program=None, limits=Limits()
        )
        request = RolloutRequest(task=task, slot=slot, sample=number, stage="check")
        folder = runner.store.begin(request.id) / "workspace"
        for source in (task.folder, answer):
            if source is not None:
                copy_tree(source, folder)
        folder.mkdir(exist_ok=True)
        rollout = Rollout(id=request.id, key=GroupKey(task.id, column), calls=())
        graded = await Grader(runner=runner, request=request).grade(rollout, Workspace(folder))
        scores.append(graded.score.value if graded.score else None)
        failures += [str(graded.failure.detail)] if graded.failure else []
    seconds = (time.monotonic() - started) / len(scores)
    return Graded(task.id, column, tuple(scores), tuple(failures), seconds)


async def grade_all(options: argparse.Namespace) -> list[Graded]:
    tasks = list(ClawGymTasks(ClawGymConfig(path=options.tasks)).tasks())
    chosen = random.Random(options.seed).sample(tasks, min(options.count, len(tasks)))
    backend_type = load_plugins().get("sandbox", options.sandbox)
    backend = backend_type(backend_type.config_type())
    engine = ScriptedEngine(ScriptedConfig(turns=("",)))
    await engine.start()
    at_a_time = asyncio.Semaphore(options.concurrency)

    async def one(task: Task, column: str, answer: Path | None) -> Graded:
        async with at_a_time:
            return await grade(runner, task, column, answer)

    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(
            proxy=Proxy(engine, ProxySettings()),
            sandbox=backend,
            verifiers={"reward_script": RewardScript(RewardScriptConfig())},
            store=RunStore(Path(folder)),
            settings=RunnerSettings(),
        )
        await backend.start()
        try:
            work = [
                one(task, column, answer)
                for task in sorted(chosen, key=lambda task: task.id)
                for column, answer in columns(task, options.answers)
            ]
            return list(await asyncio.gather(*work))
        finally:
            await backend.stop()


def columns(task: Task, answers: Path | None) -> list[tuple[str, Path | None]]:
    """Return the names of a task's workspaces, with what is put into each."""
    folder = answers / task.id if answers is not None else None
    found = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    return [(UNTOUCHED, None), *((path.name, path) for path in found)]


def show(graded: Sequence[Graded]) -> None:
    names = list(dict.fromkeys(each.column for each in graded))
    print("| task |", " | ".join(names), "| twice equal |")
    print("|---|" + "---|" * (len(names) + 1))
    for task in dict.fromkeys(each.task for each in graded):
        own = {each.column: each for each in graded if each.task == task}
        cells = [
            "-" if own[n].scores[0] is None else f"{own[n].scores[0]:.3f}"
            for n in names
            if n in own
        ]
        equal = all(len(set(each.scores)) == 1 and not each.failures for each in own.values())
        print(f"| {task} |", " | ".join(cells), f"| {'yes' if equal else 'NO'} |")
    for each in graded:
        for failure in each.failures:
            print(f"{each.task} {each.column}: {failure}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--sandbox", default="docker")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    graded = asyncio.run(grade_all(options))
    if options.json:
        print(json.dumps([vars(each) for each in graded], indent=1))
    else:
        show(graded)


if __name__ == "__main__":
    main()
