"""Ctrl-C and SIGTERM: no process and no temporary folder is left, finished work stays."""

import json
import os
import signal
import time

import psutil
import pytest

from mixharness.runs import load_rollouts

RUN = """
[[harness]]
name = "agentloop"
tools = ["bash"]
[[harness]]
name = "claude_code"
tools = ["Bash"]
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
[engine]
name = "scripted"
script = "player:play"
[rollout]
concurrency = 4
"""
TASKS = [
    {"id": "quick", "prompt": "A quick task.", "answer": {"text": "Ada"}},
    {"id": "slow", "prompt": "A slow task.", "answer": {"text": "Ada"}},
]
PLAYER = r"""
import json

def play(prompt):
    if "<tool_response>" in prompt:
        return "Done."
    quick = "A quick task." in prompt
    # The sleep in the background belongs to the sandbox, and to no command of it.
    command = "echo Ada > answer.txt" if quick else "(setsid sleep 4811 &); sleep 4811"
    name = "Bash" if '"name": "Bash"' in prompt else "bash"
    call = {"name": name, "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
"""
COLD_START = """
[[harness]]
name = "agentloop"
tools = ["bash"]
[[task_source]]
name = "office"
count = 4
[[task_source]]
name = "office"
use = "cold_start"
split = "cold_start"
count = 4
[engine]
name = "hf"
[cold_start]
script = "mixharness_office.demonstrations:demonstrate"
captures = 2
epochs = 100000
[optimizer]
name = "grpo"
"""


def wait_until(condition, limit_s=40.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def running_in(folder):
    """Return the processes, of any user, that have to do with a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        words = [*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()]
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in w for w in words):
            found.append(process)
    return found


def sleepers(folder):
    return [p for p in running_in(folder) if p.info["cmdline"] == ["sleep", "4811"]]


@pytest.mark.claude_code
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_and_what_was_finished_stays(start, tmp_path, temporary, number):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "player.py").write_text(PLAYER)
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    process = start("rollout", "run.toml", "--run-dir", "run")
    rollouts = tmp_path / "run/rollouts"
    wait_until(
        lambda: len(sleepers(temporary)) == 4 and len(list(rollouts.glob("*/rollout.json"))) == 2
    )

    os.killpg(process.pid, number)  # as a terminal does

    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert running_in(temporary) == []
    assert list(temporary.iterdir()) == []
    finished = load_rollouts(tmp_path / "run")
    found = [(r.key.task_id, r.key.harness, r.reward, len(r.calls)) for r in finished]
    assert sorted(found) == [("quick", "agentloop", 1.0, 2), ("quick", "claude_code", 1.0, 2)]


def test_a_cold_start_is_left_at_once(start, tmp_path, temporary):
    (tmp_path / "run.toml").write_text(COLD_START)
    process = start("train", "run.toml", "--run-dir", "run")
    events = tmp_path / "run/events.jsonl"
    wait_until(lambda: events.exists() and "cold_start_update" in events.read_text())

    os.killpg(process.pid, signal.SIGINT)

    _, said = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert running_in(temporary) == []
    assert list(temporary.iterdir()) == []
    assert len(load_rollouts(tmp_path / "run/cold_start")) == 2 + 4
