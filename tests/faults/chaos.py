"""Rollouts in docker under random `kill -9`: what is left of them, and on the machine?

    python tests/faults/private_dockerd.py python tests/faults/chaos.py --count 500

Kills the agent's program, whole containers and the runner, which is started again on the same run
folder until all is done; `--kill engine` restarts the engine instead. Prints one JSON object.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import docker
import psutil
from docker.errors import DockerException

from mixharness.assemble import reap_sandboxes
from mixharness.plugins import load_plugins
from mixharness.runs import load_rollouts

RUNNER, AGENT_FILE = Path(__file__).with_name("scripted_run.py"), "scripted_agent.py"
KINDS = ("harness", "container", "runner", "engine")
WEIGHTS = {"harness": 4, "container": 4, "runner": 1, "engine": 1}
RUN = """
[[harness]]
name = "scripted_agent"
[[task_source]]
name = "jsonl"
path = "tasks.jsonl"
[engine]
name = "scripted"
turns = ["Thinking.", "Ada"]
[sandbox]
name = "docker"
[limits]
agent_s = 30
wall_s = 120
memory_mb = 256
disk_mb = 16
processes = 32
[rollout]
concurrency = 8
max_infra_retries = {retries}
max_refills = 0
"""
TASK = {"id": "name", "prompt": "Who was it?", "answer": {"text": "Ada"}}


class Chaos:
    """One run and who disturbs it."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.run_dir, self.temporary = folder / "run", folder / "temporary"
        self.temporary.mkdir(mode=0o711)
        self.strikes: Counter[str] = Counter()
        self.starts = 0
        self._random = random.Random(options.seed)
        (folder / "run.toml").write_text(RUN.format(retries=options.retries))
        (folder / "tasks.jsonl").write_text(json.dumps(TASK))

    def play(self) -> None:
        """Run to the end, disturbed; how often goes by attempts begun, however slow these are."""
        kinds, due = self._kinds(), 0.0
        self._start(self.run_dir)
        kind = next(kinds, None)
        while True:
            try:
                code = self.runner.wait(self._random.uniform(0.0, 1.0))
            except subprocess.TimeoutExpired:
                if kind and self._attempts() >= due and self._strike(kind):
                    self.strikes[kind] += 1
                    kind = next(kinds, None)
                    due = self._attempts() + self._random.uniform(0.0, 2 * self.options.every)
                continue
            if code == 0:
                return
            if code != -signal.SIGKILL:
                sys.exit(f"the runner ended with {code}:\n{self._said.read_text()[-4000:]}")
            self._start(self.run_dir)

    def abandon(self) -> None:
        """Kill the runner of another run for good, in the middle of its work."""
        self._start(self.folder / "abandoned")
        while not agent_pids():
            time.sleep(0.05)
        self.runner.kill()
        self.runner.wait()

    def _kinds(self) -> Iterator[str]:
        """Yield what is to be killed: all kinds once, then at random."""
        kinds = self.options.kill.split(",")
        weights = [WEIGHTS[kind] for kind in kinds]
        number = 0
        while not self.options.strikes or number < self.options.strikes:
            yield kinds[number] if number < len(kinds) else self._random.choices(kinds, weights)[0]
            number += 1

    def _attempts(self) -> int:
        """Return how many attempts at a rollout have begun; each has its folder."""
        return sum(1 for _ in self.run_dir.glob("rollouts/*"))

    def _start(self, run_dir: Path) -> None:
        self.starts += 1
        self._said = self.folder / f"runner-{self.starts}.txt"
        arguments = [str(self.folder / "run.toml"), str(run_dir), str(self.options.count)]
        with self._said.open("wb") as said:
            self.runner = subprocess.Popen(
                [sys.executable, str(RUNNER), *arguments],
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdout=said,
                stderr=said,
                cwd=self.folder,
                start_new_session=True,
            )

    def _strike(self, kind: str) -> bool:
        """Kill something of this kind, if there is any; it all waits for an agent to be at work."""
        agents = agent_pids()
        if not agents:
            return False
        if kind == "engine":
            os.kill(os.getppid(), signal.SIGUSR1)
            return True
        if kind == "runner":
            self.runner.kill()
            return self.runner.wait() == -signal.SIGKILL
        victims = agents if kind == "harness" else container_pids()
        return bool(victims) and kill(self._random.choice(victims))

    def report(self) -> dict[str, object]:
        """Return what came of it; removes what the runners left, once."""
        before = left(self.temporary)
        reaped = asyncio.run(reap_sandboxes("docker", load_plugins(installed=False)))
        rollouts = load_rollouts(self.run_dir)
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        events = [event for line in lines if (event := whole(line))]
        retried = Counter(e["kind"] for e in events if e["event"] == "rollout_failed")
        return {
            "rollouts": len(rollouts),
            "completed": sum(r.failure is None and r.reward == 1.0 for r in rollouts),
            "failures": Counter(str(r.failure.kind) for r in rollouts if r.failure),
            "details": sorted({r.failure.detail for r in rollouts if r.failure}),
            "failed_attempts": retried,
            "usable": sum(r.usable for r in rollouts),
            "strikes": self.strikes,
            "runner_starts": self.starts,
            "reaped": reaped,
            "left_before": {place: len(found) for place, found in before.items()},
            "left": left(self.temporary),
        }


def agent_pids() -> list[int]:
    """Return the agents' processes; the world is this run's own."""
    found = psutil.process_iter(["cmdline", "status"])
    return [p.pid for p in found if is_agent(p.info["cmdline"] or []) and p.status() != "zombie"]


def is_agent(command: list[str]) -> bool:
    return command[:1] == ["python3"] and command[-1].endswith(AGENT_FILE)


def container_pids() -> list[int]:
    """Return the first process of each container."""
    client = docker.from_env()
    try:
        pids = [c.attrs["State"]["Pid"] for c in client.containers.list()]
        return [pid for pid in pids if pid]  # 0: it ended, and would be ourselves
    except DockerException:  # one went away while it was looked at
        return []
    finally:
        client.close()


def kill(pid: int) -> bool:
    """Say whether there was something to kill."""
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


def whole(line: str) -> dict[str, str]:
    """Return an event; nothing of one that was cut off by a kill."""
    try:
        event: dict[str, str] = json.loads(line)
        return event
    except json.JSONDecodeError:
        return {}


def left(temporary: Path) -> dict[str, list[str]]:
    """Return all that should not be there any more."""
    client = docker.from_env()
    networks = {network.name for network in client.networks.list()}
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    found = {
        "containers": [c.name for c in client.containers.list(all=True)],
        "networks": sorted(networks - {"bridge", "host", "none"}),
        "volumes": [volume.name for volume in client.volumes.list()],
        "rules": [line for line in rules.splitlines() if "mixharness" in line.lower()],
        "temporary": sorted(path.name for path in temporary.iterdir()),
        "agents": [str(pid) for pid in agent_pids()],
    }
    client.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="rollouts")
    parser.add_argument("--kill", default="harness,container,runner", help=f"of {KINDS}")
    parser.add_argument("--strikes", type=int, default=0, help="at most; 0: to the end")
    parser.add_argument("--every", type=float, default=2.0, help="mean attempts between strikes")
    parser.add_argument("--retries", type=int, default=2, help="after infrastructure failures")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if os.getppid() != 1:
        sys.exit("this kills at random: run it by private_dockerd.py")
    with tempfile.TemporaryDirectory(prefix="mixharness-chaos-") as name:
        Path(name).chmod(0o711)
        began = time.monotonic()
        chaos = Chaos(Path(name), options)
        chaos.play()
        chaos.abandon()
        print(json.dumps({**chaos.report(), "seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
