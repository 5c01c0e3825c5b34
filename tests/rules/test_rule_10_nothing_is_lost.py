"""Rule 10: what is finished is on disk; a run that was killed loads it and goes on."""

import json
import os
import subprocess
import sys
import time

RUN_FILE = """
[[harness]]
name = "agentloop"
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
[engine]
name = "scripted"
script = "player:play"
[rollout]
concurrency = 1
"""
PLAYER = """
import time
from pathlib import Path

def play(prompt):
    (task,) = [name for name in ("one", "two", "three") if f"task {name}" in prompt]
    with open("played.txt", "a") as file:
        print(task, file=file)
    while task == "three" and Path("hold").exists():
        time.sleep(0.02)
    return "Done."
"""
IDS = ["rollout-one-agentloop-0", "rollout-two-agentloop-0", "rollout-three-agentloop-0"]


def start(folder, temporary):
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", "from mixharness.cli import main; main()", "rollout", "run.toml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def played(folder):
    file = folder / "played.txt"
    return file.read_text().split() if file.exists() else []


def test_a_killed_run_loads_what_was_finished(tmp_path, temporary):
    tasks = [{"id": t, "prompt": f"task {t}", "answer": {"text": t}} for t in ("one", "two")]
    tasks.append({"id": "three", "prompt": "task three", "answer": {"text": "three"}})
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    (tmp_path / "run.toml").write_text(RUN_FILE)
    (tmp_path / "player.py").write_text(PLAYER)
    (tmp_path / "hold").touch()
    files = [tmp_path / "runs" / "run" / "rollouts" / name / "rollout.json" for name in IDS]

    deadline = time.monotonic() + 60
    with start(tmp_path, temporary) as run:
        while "three" not in played(tmp_path) and time.monotonic() < deadline:
            assert run.poll() is None, run.stdout.read()
            time.sleep(0.02)
        run.kill()
    assert [file.exists() for file in files] == [True, True, False]
    before = [file.stat().st_mtime_ns for file in files[:2]]

    (tmp_path / "hold").unlink()
    with start(tmp_path, temporary) as run:
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 0, output
    assert played(tmp_path) == ["one", "two", "three", "three"]
    assert [file.stat().st_mtime_ns for file in files[:2]] == before
    assert files[2].exists()
    assert list(temporary.glob("mixharness-sandbox-*")) == []
