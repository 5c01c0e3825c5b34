"""Trainings that are killed and resumed: `killed_training.py FOLDER`, with orders on stdin.

Everything is imported once and each training is a fork, so that many are quick. An order is a JSON
object: `run_file`, `run_dir`, whether to `resume`, and when to `kill -9`: `before` the change of
this name, or `at` the change of this number. A change of the folder is a file renamed, linked,
removed or opened for writing, or a line of metrics. The answer is a JSON object: the exit `status`
and the names of the `changes` that were made.
"""

import hashlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from mixharness import ComponentConfig, Harness, HarnessExit, Session, hookimpl
from mixharness.builtin.jsonl_tracker import JsonlTracker
from mixharness.config import load_run_file
from mixharness.interrupt import run_interruptible
from mixharness.plugins import Registry, load_plugins
from mixharness.tracker import Tracker
from mixharness_trainer.train import train

LINE = "metrics.line"
PATH_AT = {"os.symlink": 1} | dict.fromkeys(
    ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "open", LINE), 0
)
"""By audit event, which of its arguments is the path."""


class Asker(Harness[ComponentConfig]):
    """Asks twice and writes down whether the answers' hash is even: a coin, but a fixed one."""

    name = "asker"
    dialects = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        messages = [{"role": "user", "content": session.task.prompt}]
        headers = {"authorization": f"Bearer {session.secret}"}
        said = ""
        async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as client:
            for _ in range(2):
                body = {"model": "policy", "messages": messages}
                url = f"{session.base_url}/v1/chat/completions"
                answer = (await client.post(url, json=body)).raise_for_status().json()
                message = answer["choices"][0]["message"]
                said += message["content"] or ""
                messages += [message, {"role": "user", "content": "Go on."}]
        even = hashlib.sha256(said.encode()).digest()[0] % 2 == 0
        await session.sandbox.write("answer.txt", b"even" if even else b"odd")
        return HarnessExit(exit_code=0)


def demonstrate(prompt: str) -> str:
    """Play both turns of a conversation."""
    return "Done." if "Go on." in prompt else "Well."


class AuditedTracker(JsonlTracker):
    """Tells the interpreter's audit of each line that it is to write."""

    name = "audited"

    def start(self, run_dir: Path, config: Any) -> None:
        self._run_dir = run_dir
        super().start(run_dir, config)

    def log(self, metrics: Any, step: int) -> None:
        sys.audit(LINE, self._run_dir / f"line-{step}")
        super().log(metrics, step)


class Plugin:
    @hookimpl
    def register_harnesses(self) -> Sequence[type[Harness[Any]]]:
        return [Asker]

    @hookimpl
    def register_trackers(self) -> Sequence[type[Tracker[Any]]]:
        return [AuditedTracker]


class Killer:
    """Counts the changes of a folder, and kills this process before one of them."""

    def __init__(self, order: dict[str, Any], report: int) -> None:
        self._folder, self._report = order["run_dir"], report
        self._before, self._at = order.get("before"), order.get("at")
        self._lock, self._count = threading.Lock(), 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Take an audit event of the interpreter; it comes before what it tells of."""
        if event not in PATH_AT:
            return
        path = str(args[PATH_AT[event]])
        reads = event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR)
        if reads or not path.startswith(self._folder):
            return
        name = os.path.relpath(path, self._folder)
        change = f"{event} {re.sub('-[a-z0-9_]{8}(?=/|$)', '-*', name)}"
        with self._lock:
            self._count += 1
            if change == self._before or self._count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(self._report, f"{change}\n".encode())


def obey(order: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """Train in a fork, kill it when it is time, and return what was seen."""
    seen, report = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(seen)
        _train(order, registry, report)
    os.close(report)
    with os.fdopen(seen) as file:
        changes = file.read().splitlines()  # ends with the process
    _, status = os.waitpid(pid, 0)
    return {"status": os.waitstatus_to_exitcode(status), "changes": changes}


def _train(order: dict[str, Any], registry: Registry, report: int) -> None:
    said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        config = load_run_file(Path(order["run_file"]), registry)
        sys.addaudithook(Killer(order, report))
        run_dir = Path(order["run_dir"])
        run_interruptible(train(config, registry, run_dir, resume=order["resume"]))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main(folder: str) -> None:
    os.chdir(folder)
    registry = load_plugins(Plugin())
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line), registry)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
