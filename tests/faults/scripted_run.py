"""A run whose agent is a small program in the sandbox: `scripted_run.py RUN_FILE RUN_DIR SAMPLES`.

The run of a folder goes on where it was. Who disturbs it is chaos.py.
"""

import sys
from pathlib import Path

from mixharness import ComponentConfig, Harness, HarnessExit, Session, hookimpl
from mixharness.commands import rollout_run
from mixharness.config import load_run_file
from mixharness.interrupt import run_interruptible
from mixharness.plugins import load_plugins

AGENT_FILE = "scripted_agent.py"
AGENT = """
import json, os, time, urllib.request

messages = [{"role": "user", "content": os.environ["PROMPT"]}]
for _ in range(2):
    request = urllib.request.Request(
        os.environ["BASE_URL"] + "/v1/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        message = json.load(response)["choices"][0]["message"]
    messages += [message, {"role": "user", "content": "Go on."}]
    time.sleep(0.2)
with open("answer.txt", "w") as file:
    file.write(message["content"])
"""


class ScriptedAgent(Harness[ComponentConfig]):
    """Asks twice and writes the second answer to a file, all of it in the sandbox."""

    name = "scripted_agent"
    dialects = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        sandbox = session.sandbox
        file = f"{sandbox.home}/{AGENT_FILE}"
        await sandbox.write(file, AGENT.encode())
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PROMPT": session.task.prompt}
        environment |= {"BASE_URL": session.base_url, "KEY": session.secret}
        done = await sandbox.exec(["python3", file], env=environment)
        reason = "completed" if done.exit_code == 0 else "error"
        output = done.stderr.decode(errors="replace")
        return HarnessExit(exit_code=done.exit_code, output=output, reason=reason)


class Plugin:
    @hookimpl
    def register_harnesses(self):
        return [ScriptedAgent]


def main(run_file: str, run_dir: str, samples: str) -> None:
    registry = load_plugins(Plugin(), installed=False)
    config = load_run_file(Path(run_file), registry)
    work = rollout_run(config, registry, Path(run_dir), int(samples), lambda done, of: None)
    run_interruptible(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
