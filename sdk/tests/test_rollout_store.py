from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mixharness.proxy.log import CallLog
from mixharness.rollout.store import RunStore, write_atomically
from mixharness.runs import collect_once
from mixharness.types import (
    Delivery,
    Failure,
    FailureKind,
    GroupKey,
    HarnessExit,
    ModelCall,
    Rollout,
    Score,
    VersionSpan,
)

CALL = ModelCall(
    id="call_0",
    rollout_id="r",
    index=0,
    environment_ids=(1, 2),
    sampled_ids=(3,),
    logprobs=(-0.25,),
    versions=(VersionSpan(4, 0, 1),),
)
ROLLOUT = Rollout(
    id="r",
    key=GroupKey("t", "agentloop"),
    calls=(replace(CALL, delivery=Delivery.DELIVERED),),
    score=Score(value=0.5, detail={"files": ["a"]}),
    failure=Failure(kind=FailureKind.MAX_TURNS, detail="ü", attempts=2),
    exit=HarnessExit(exit_code=None, reason="max_turns"),
    agent_s=1.5,
    policy_version=4,
)


async def finish(store: RunStore) -> None:
    log = CallLog(store.begin("r"))
    await log.sampled(CALL, b"{}", b"{}")
    log.delivery("call_0", Delivery.DELIVERED)
    log.close()
    store.save(ROLLOUT)


@pytest.mark.anyio
async def test_a_rollout_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    await finish(store)
    assert store.finished() == ["r"]
    assert RunStore(tmp_path).load("r") == ROLLOUT


@pytest.mark.anyio
async def test_a_new_attempt_keeps_the_earlier_one_aside(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    await finish(store)
    assert list(store.begin("r").iterdir()) == []
    assert store.finished() == []
    assert (tmp_path / "rollouts" / "r~1" / "rollout.json").is_file()
    store.begin("r")
    assert (tmp_path / "rollouts" / "r~2").is_dir()


def test_an_unfinished_rollout_cannot_be_loaded(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.begin("r")
    assert store.finished() == []
    with pytest.raises(FileNotFoundError):
        store.load("r")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "f"
    write_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "not bytes")  # type: ignore[arg-type]
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


@pytest.mark.anyio
async def test_a_collected_stage_is_taken_as_it_was(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    await finish(store)
    failed = replace(ROLLOUT, id="q", failure=Failure(kind=FailureKind.CONNECTION), score=None)
    store.begin("q")
    store.save(replace(failed, calls=()))
    assert store.collected("step-1") is None
    store.note_collected("step-1", [failed, ROLLOUT])
    run = SimpleNamespace(store=RunStore(tmp_path))  # with nothing that could run a rollout
    found = await collect_once(run, [], "step-1")  # type: ignore[arg-type]
    assert [rollout.id for rollout in found] == ["q", "r"]
    assert found[1] == ROLLOUT
