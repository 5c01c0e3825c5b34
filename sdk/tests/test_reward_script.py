"""The `reward_script` verifier: scores, its payload, and graders that agents tamper with."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mixharness.builtin.clawgym import ClawGymConfig, ClawGymTasks
from mixharness.builtin.local import LocalSandboxBackend, LocalSandboxConfig
from mixharness.builtin.reward_script import RewardScript, RewardScriptConfig, session_entries
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.proxy.admission import ProxySettings
from mixharness.proxy.app import Proxy
from mixharness.proxy.chat import ChatMessage, ToolCall
from mixharness.rollout.grading import Grader
from mixharness.rollout.run_one import run_one
from mixharness.rollout.store import RunStore
from mixharness.rollout.types import HarnessSlot, RolloutRequest, Runner
from mixharness.sandbox import Workspace
from mixharness.snapshot import copy_tree
from mixharness.testing import EchoHarness
from mixharness.testing.doubles import EchoHarnessConfig
from mixharness.types import FailureKind, GroupKey, HarnessExit, Limits, Rollout, Task

pytestmark = pytest.mark.anyio

FIXTURES = Path(__file__).parents[2] / "tests/fixtures/clawgym"
# The local sandbox has no say over where a workspace is seen; these scripts do not mind.
TASKS = {
    task.id: replace(task, workspace="")
    for task in ClawGymTasks(ClawGymConfig(path=FIXTURES)).tasks()
}
SUMMARY = {"total": 20.0, "by_region": {"north": 12.5, "south": 4.0, "east": 3.5}}


@pytest.fixture(autouse=True)
def temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Where sandboxes live; open to the sandbox's user, unlike tmp_path."""
    tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="mixharness-test-") as name:
        Path(name).chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        assert list(Path(name).iterdir()) == []


class Bench:
    """Grades workspaces the way a run does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = RunStore(folder)
        self.timeout_s = 60.0

    async def runner(self, turn: str) -> Runner:
        engine = ScriptedEngine(ScriptedConfig(turns=(turn,)))
        await engine.start()
        return Runner(
            proxy=Proxy(engine, ProxySettings()),
            sandbox=LocalSandboxBackend(LocalSandboxConfig()),
            verifiers={"reward_script": RewardScript(RewardScriptConfig(timeout_s=self.timeout_s))},
            store=self.store,
        )

    def request(self, task: Task) -> RolloutRequest:
        harness = EchoHarness(EchoHarnessConfig())
        slot = HarnessSlot(label="echo", harness=harness, program=None, limits=Limits())
        return RolloutRequest(task=task, slot=slot, sample=0, stage="test")

    async def grade(
        self, task: Task, files: Mapping[str, str] | None = None, said: str = ""
    ) -> Rollout:
        request = self.request(task)
        rollout = Rollout(
            id=request.id,
            key=GroupKey(task.id, "echo"),
            calls=(),
            exit=HarnessExit(exit_code=0, final_message=said),
        )
        self.store.begin(rollout.id)
        workspace = self.store.path(rollout.id) / "workspace"
        workspace.mkdir()
        if task.folder is not None:
            copy_tree(task.folder, workspace)
        for name, text in (files or {}).items():
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_text(text)
        grader = Grader(runner=await self.runner("fine"), request=request)
        return await grader.grade(rollout, Workspace(workspace))

    def task(self, script: str) -> Task:
        """Return a task that is graded by this script alone."""
        reward = self.folder / "grader" / "reward"
        reward.mkdir(parents=True)
        (reward / "reward.sh").write_text(script)
        answer = {"reward": str(reward)}
        return Task(id="t", prompt="p", verifier="reward_script", answer=answer)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("summary", "score"),
    [
        (SUMMARY, 1.0),
        (SUMMARY | {"total": 21}, 0.75),
        ({"total": 20}, 0.5),
        ([], 0.0),
    ],
)
async def test_partial_scores(bench: Bench, summary: object, score: float) -> None:
    files = {"output/summary.json": json.dumps(summary)}
    graded = await bench.grade(TASKS["csv_summary"], files)
    assert (graded.failure, graded.reward) == (None, score)


async def test_an_untouched_workspace_is_graded(bench: Bench) -> None:
    assert (await bench.grade(TASKS["csv_summary"])).reward == 0.0


async def test_grading_changes_nothing_and_agrees_with_itself(bench: Bench) -> None:
    first = await bench.grade(TASKS["word_count"], {"count.txt": "4"})
    workspace = bench.store.path(first.id) / "workspace"
    assert sorted(path.name for path in workspace.iterdir()) == ["count.txt", "notes.txt"]
    second = await bench.grade(TASKS["word_count"], {"count.txt": "4"})
    assert first.reward == second.reward == 0.8


TAKEOVER = "import os\nprint(1.0, flush=True)\nos._exit(0)\n"


@pytest.mark.parametrize(
    "planted",
    [
        {"json.py": TAKEOVER, "csv.py": TAKEOVER, "pathlib.py": TAKEOVER},
        {"sitecustomize.py": TAKEOVER, "usercustomize.py": TAKEOVER, "home.pth": TAKEOVER},
        {"reward/check.py": TAKEOVER, "reward/reward.sh": "echo 1.0"},
        {"reward/json.py": TAKEOVER, "reward/sitecustomize.py": TAKEOVER},
        {"python3": "#!/bin/sh\necho 1.0", "bash": "#!/bin/sh\necho 1.0"},
        {".bashrc": "echo 1.0; exit", ".profile": "echo 1.0; exit", ".bash_env": "exit"},
        {"reward": "1.0"},
    ],
    ids=lambda planted: next(iter(planted)),
)
async def test_nothing_planted_is_run_or_imported(bench: Bench, planted: dict[str, str]) -> None:
    files = {"output/summary.json": json.dumps({"total": 20})} | planted
    graded = await bench.grade(TASKS["csv_summary"], files)
    assert (graded.failure, graded.reward) == (None, 0.5)


async def test_a_grader_that_the_workspace_breaks_costs_the_policy(bench: Bench) -> None:
    graded = await bench.grade(TASKS["word_count"], {"count.txt": "about five"})
    assert graded.failure is not None
    assert (graded.failure.kind, graded.reward) == (FailureKind.GRADER_BROKEN, 0.0)
    assert "reward.sh ended with code 1" in graded.failure.detail
    assert "invalid literal for int()" in graded.failure.detail


async def test_a_grader_that_the_last_message_breaks_costs_the_policy(bench: Bench) -> None:
    script = 'grep -q BREAK "$OPENCLAW_REWARD_PAYLOAD" && exit 3; echo 0.25'
    graded = await bench.grade(bench.task(script), said="BREAK it")
    assert graded.failure is not None
    assert (graded.failure.kind, graded.reward) == (FailureKind.GRADER_BROKEN, 0.0)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 1.0; exit 4", "reward.sh ended with code 4"),
        ("true", "must print a number in [0, 1] last, got ''"),
        ("echo 0.5; echo done", "must print a number in [0, 1] last, got 'done'"),
        ("echo 1.5", "got '1.5'"),
        ("echo -0.1", "got '-0.1'"),
        ("echo nan", "got 'nan'"),
        ("echo inf", "got 'inf'"),
        ("kill -9 $$", "ended with code"),
    ],
)
async def test_a_broken_grader_is_nobodys_score(bench: Bench, script: str, problem: str) -> None:
    graded = await bench.grade(bench.task(script))
    assert graded.failure is not None
    assert graded.failure.kind is FailureKind.JUDGE_UNAVAILABLE
    assert problem in graded.failure.detail
    assert graded.score is None


async def test_a_grader_that_hangs(bench: Bench) -> None:
    bench.timeout_s = 0.5
    graded = await bench.grade(bench.task("sleep 60; echo 1"))
    assert graded.failure is not None
    assert "reward.sh ran for more than 0.5 s" in graded.failure.detail


@pytest.mark.parametrize(
    ("printed", "score"),
    [("1e-3", 0.001), (" 1 \\n\\n", 1.0), ("1.0000000000000002", 1.0), ("chatter\\n0.5", 0.5)],
)
async def test_the_last_line_is_the_score(bench: Bench, printed: str, score: float) -> None:
    assert (await bench.grade(bench.task(f"printf '{printed}'"))).reward == score


async def test_a_chat_task_reads_the_last_message(bench: Bench) -> None:
    assert (await bench.grade(TASKS["chat_reply"], said="Paris")).reward == 0.5
    assert (await bench.grade(TASKS["chat_reply"], said="paris?")).reward == 0.0


async def test_a_chat_task_reads_the_transcript(bench: Bench) -> None:
    runner = await bench.runner("Paris")
    await runner.proxy.start()
    try:
        rollout = await run_one(runner, bench.request(TASKS["chat_reply"]))
    finally:
        await runner.proxy.stop()
    assert (rollout.failure, rollout.reward) == (None, 1.0)


async def test_the_payload(bench: Bench) -> None:
    script = """python3 -c '
import json, os
p = json.load(open(os.environ["OPENCLAW_REWARD_PAYLOAD"]))
assert sorted(p) == ["final_message", "metadata", "task_id", "transcript", "user_query"]
assert (p["task_id"], p["user_query"], p["metadata"], p["transcript"]) == ("t", "p", {}, [])
print(float(p["final_message"] == "\\udcff Paris"))
'"""
    assert (await bench.grade(bench.task(script), said="\udcff Paris")).reward == 1.0


async def test_the_key_must_be_there(tmp_path: Path) -> None:
    verifier = RewardScript(RewardScriptConfig())
    task = Task(id="t", prompt="p", verifier="reward_script")
    with pytest.raises(ValueError, match=r"no answer\[\"reward\"\], the folder of its reward\.sh"):
        await verifier.validate(task)
    with pytest.raises(ValueError, match=r"reward\.sh is missing"):
        await verifier.validate(replace(task, answer={"reward": str(tmp_path)}))
    await verifier.validate(TASKS["csv_summary"])


def test_a_transcript_has_the_form_of_session_files() -> None:
    call = ToolCall(id="c1", name="exec", arguments='{"command": "ls"}')
    odd = ToolCall(id="c2", name="exec", arguments="ls")
    entries = session_entries(
        [
            ChatMessage(role="system", content="You are."),
            ChatMessage(role="user", content="Go."),
            ChatMessage(role="assistant", reasoning="Hm.", content="So.", tool_calls=(call, odd)),
            ChatMessage(role="tool", content="a.txt", tool_call_id="c1"),
        ]
    )
    assert [entry["type"] for entry in entries] == ["message"] * 3
    user, assistant, result = (entry["message"] for entry in entries)
    assert user == {"role": "user", "content": [{"type": "text", "text": "Go."}]}
    assert assistant["content"] == [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "So."},
        {"type": "toolCall", "id": "c1", "name": "exec", "arguments": {"command": "ls"}},
        {"type": "toolCall", "id": "c2", "name": "exec", "arguments": "ls"},
    ]
    assert (result["role"], result["toolCallId"], result["toolName"]) == (
        "toolResult",
        "c1",
        "exec",
    )
