"""Real programs in containers: task to graded rollout, through the proxy on the bridge."""

from pathlib import Path

import orjson
import pytest

from mixharness.config import load_run_file
from mixharness.plugins import load_plugins
from mixharness.runs import collect_rollouts, open_run

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

WORKSPACE = "/root/.openclaw/workspace"
RUN_FILE = """
name = "docker"
[[harness]]
name = "{harness}"
tools = ["{tool}"]
[[task_source]]
name = "jsonl"
path = "{folder}/tasks.jsonl"
[sandbox]
name = "docker"
pool = 1
[engine]
name = "scripted"
turns = [{turns}]
[limits]
max_turns = 4
"""
TASK = {
    "id": "copy",
    "prompt": "Copy in.txt to answer.txt",
    "files": {"in.txt": "forty two\n"},
    "workspace": WORKSPACE,
    "answer": {"text": "forty two"},
}


async def rollouts_of(harness: str, tool: str, folder: Path):
    (folder / "tasks.jsonl").write_bytes(orjson.dumps(TASK))
    body = {
        "name": tool,
        "arguments": {"command": "cp in.txt answer.txt; (pwd; id -u) > where.txt"},
    }
    turn = f"<tool_call>\n{orjson.dumps(body).decode()}\n</tool_call>"
    turns = ", ".join(orjson.dumps(text).decode() for text in (turn, "Copied."))
    file = folder / "run.toml"
    file.write_text(RUN_FILE.format(harness=harness, tool=tool, folder=folder, turns=turns))
    registry = load_plugins()
    async with open_run(load_run_file(file, registry), registry, folder / "run") as run:
        tasks = run.tasks["train"]
        return await collect_rollouts(run, tasks, "test", samples=2)


@pytest.mark.parametrize(
    ("harness", "tool"),
    [
        ("agentloop", "bash"),
        pytest.param("claude_code", "Bash", marks=pytest.mark.claude_code),
    ],
)
async def test_a_task_is_done_and_graded(harness: str, tool: str, tmp_path: Path) -> None:
    rollouts = await rollouts_of(harness, tool, tmp_path)
    assert [(r.failure, r.reward) for r in rollouts] == [(None, 1.0)] * 2
    found = [file.read_text().split() for file in tmp_path.rglob("where.txt")]
    assert {where for where, _ in found} == {WORKSPACE}
    assert len({user for _, user in found} - {"0"}) == len(found) == 2
