from mixharness.rollout.types import HarnessSlot, RolloutRequest
from mixharness.testing.doubles import EchoHarness, EchoHarnessConfig
from mixharness.types import GroupKey, Limits, Task

SLOT = HarnessSlot(
    label="echo", harness=EchoHarness(EchoHarnessConfig()), program=None, limits=Limits()
)


def request(task_id: str) -> RolloutRequest:
    task = Task(id=task_id, prompt="", verifier="v")
    return RolloutRequest(task=task, slot=SLOT, sample=1, stage="step-1")


def test_an_id_is_made_of_what_it_is_for() -> None:
    assert request("t").id == "step-1-t-echo-1"
    assert request("t").key == GroupKey("t", "echo")


def test_an_id_is_safe_in_a_file_name_and_stays_unique() -> None:
    ids = [request(task_id).id for task_id in ("a_b", "a/b", "a b", "../a", "a" * 400, "a" * 401)]
    assert len(set(ids)) == 6
    assert not any("/" in name or " " in name or len(name) > 200 for name in ids)
