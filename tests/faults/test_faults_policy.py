"""A policy that attacks its grader or its machine: score 0, and it stays in the baseline."""

import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from mixharness import ComponentConfig, Harness, HarnessExit, Session
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.plugins import load_plugins
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner
from mixharness.types import FailureClass, FailureKind, Limits, RolloutGroup, Score, Task, TokenTree
from mixharness.verifier import Verifier

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIMITS = Limits(
    agent_s=60, wall_s=300, memory_mb=256, disk_mb=64, file_mb=48, processes=48, output_mb=1
)
GRADER = 'read -r number < number.txt && echo "$((number == 7))"'
ATTACKS = {
    "grader": "printf '7 +\\n' > number.txt",
    "disk": "for n in 1 2 3; do head -c 40000000 /dev/zero > $n || exit; done",
    "forks": "bomb() { bomb | bomb & }; bomb; sleep 1; exit 1",
    "memory": "python3 -c 'x = bytearray(1 << 30); x[::4096] = bytes(1 << 18)'",
}


class Attacker(Harness[ComponentConfig]):
    """Asks the policy once, as any agent, and runs the command that is the task's prompt."""

    name = "attacker"
    dialects = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            response = await client.post(
                f"{session.base_url}/v1/chat/completions",
                headers={"authorization": f"Bearer {session.secret}"},
                json={"messages": [{"role": "user", "content": session.task.prompt}]},
            )
            response.raise_for_status()
        done = await session.sandbox.exec(["bash", "-c", session.task.prompt])
        reason = "completed" if done.exit_code == 0 else "error"
        return HarnessExit(exit_code=done.exit_code, reason=reason)


class InFreshSandbox(Verifier[ComponentConfig]):
    """Runs a script of the task's author on what the agent left."""

    name = "in_fresh_sandbox"

    async def score(self, task, rollout, workspace) -> Score:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "grade.sh").write_text(GRADER)
            async with workspace.sandbox({"grader": Path(folder)}) as sandbox:
                done = await sandbox.exec(["bash", "grader/grade.sh"], timeout_s=30)
        return Score(value=float(done.stdout))


@pytest.fixture
def temporary(monkeypatch):
    """Where sandboxes live; open to their users, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="mixharness-faults-") as name:
        Path(name).chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@asynccontextmanager
async def open_runner(folder: Path, sandbox: str):
    cls = load_plugins(installed=False).get("sandbox", sandbox)
    backend, engine = cls(cls.config_type()), ScriptedEngine(ScriptedConfig(turns=("Now.",)))
    async with AsyncExitStack() as stack:
        await engine.start()
        stack.push_async_callback(backend.stop)
        await backend.start()
        proxy = Proxy(engine, ProxySettings())
        stack.push_async_callback(proxy.stop)
        await backend.admit(await proxy.start(backend.proxy_host))
        verifiers = {InFreshSandbox.name: InFreshSandbox(ComponentConfig())}
        yield Runner(proxy=proxy, sandbox=backend, verifiers=verifiers, store=RunStore(folder))


def request(command: str, sample: int) -> RolloutRequest:
    harness = Attacker(ComponentConfig())
    slot = HarnessSlot(label="attacker", harness=harness, program=None, limits=LIMITS)
    task = Task(
        id="seven", prompt=command, verifier=InFreshSandbox.name, files={"number.txt": "0\n"}
    )
    return RolloutRequest(task=task, slot=slot, sample=sample, stage="attack")


@pytest.mark.parametrize("sandbox", ["local", pytest.param("docker", marks=pytest.mark.docker)])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_scores_zero_beside_an_honest_one(sandbox, attack, tmp_path, temporary):
    async with open_runner(tmp_path, sandbox) as runner:
        attacked = await run_one(runner, request(ATTACKS[attack], 0))
        honest = await run_one(runner, request("echo 7 > number.txt", 1))
    assert attacked.failure.failure_class is FailureClass.POLICY
    broke_grader = attacked.failure.kind is FailureKind.GRADER_BROKEN
    assert broke_grader == (attack == "grader")
    group = RolloutGroup(honest.key, (attacked, honest), (TokenTree(()), TokenTree(())))
    assert group.rewards == (0.0, 1.0)
    assert list(temporary.iterdir()) == []
