from dataclasses import replace

import pytest

from mixharness.proxy.bodies import KEY_FRAME_EVERY, Body, BodyWriter, read_bodies
from mixharness.proxy.log import BODIES, CALLS, CallLog, note_superseded, read_calls
from mixharness.types import CallRole, Delivery, ModelCall, VersionSpan


def make(index):
    return ModelCall(
        id=f"call_{index}",
        rollout_id="r",
        index=index,
        environment_ids=(1, 2),
        sampled_ids=(3, 4),
        logprobs=(-0.1, -1e-7),
        replayed=((0, 1),),
        versions=(VersionSpan(3, 0, 2),),
    )


@pytest.mark.anyio
async def test_events_are_worked_in(tmp_path):
    log = CallLog(tmp_path)
    await log.sampled(make(1), b"q", b"a")
    await log.sampled(make(0), b"q", b"a")
    log.duplicate("call_0")
    log.delivery("call_0", Delivery.DELIVERED)
    log.identified(replace(make(1), role=CallRole.AUXILIARY, agent="title"))
    log.close()
    note_superseded(tmp_path, {"call_1": "superseded"})
    first, second = read_calls(tmp_path)
    assert (first.id, first.delivery, first.duplicates) == ("call_0", Delivery.DELIVERED, 1)
    assert second.delivery is Delivery.UNKNOWN
    assert (second.role, second.agent) == (CallRole.AUXILIARY, "title")
    assert (
        (tmp_path / CALLS)
        .read_bytes()
        .endswith(b'{"event":"superseded","id":"call_1","reason":"superseded"}\n')
    )
    assert first.logprobs == make(0).logprobs
    assert first.versions == make(0).versions


@pytest.mark.anyio
async def test_a_call_is_on_disk_before_sampled_returns(tmp_path):
    log = CallLog(tmp_path)
    await log.sampled(make(0), b"request", b"response")
    assert read_calls(tmp_path)[0].sampled_ids == (3, 4)
    assert [b.data for b in read_bodies(tmp_path / BODIES)] == [b"request", b"response"]
    log.close()


@pytest.mark.anyio
async def test_a_torn_line_is_dropped_and_a_broken_one_is_told(tmp_path):
    log = CallLog(tmp_path)
    await log.sampled(make(0), b"", b"")
    log.close()
    whole = (tmp_path / CALLS).read_bytes()
    (tmp_path / CALLS).write_bytes(whole + whole[:40])
    assert len(read_calls(tmp_path)) == 1
    (tmp_path / CALLS).write_bytes(whole[:40] + b"\n" + whole)
    with pytest.raises(ValueError, match=r"calls\.jsonl:1: no event"):
        read_calls(tmp_path)


def write(path, count, agents=("", "sub")):
    writer = BodyWriter(path)
    bodies = [
        Body(call=f"call_{n}", kind="request", agent=agent, data=b"history %d " % n * 50 * (n + 1))
        for n in range(count)
        for agent in agents
    ]
    for body in bodies:
        writer.append(body)
    writer.close()
    return bodies


def test_bodies_are_byte_exact_over_key_frames(tmp_path):
    path = tmp_path / "bodies"
    bodies = write(path, KEY_FRAME_EVERY + 3)
    assert list(read_bodies(path)) == bodies
    assert path.read_bytes().count(b'"key_frame":true') == 4
    assert path.stat().st_size < sum(len(body.data) for body in bodies) / 5


def test_a_torn_body_ends_the_file_and_damage_is_told(tmp_path):
    path = tmp_path / "bodies"
    bodies = write(path, 3, agents=("",))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert list(read_bodies(path)) == bodies[:2]
    at = whole.rindex(b'"xxh3":"') + 8
    other = b"0" if whole[at : at + 1] != b"0" else b"1"
    path.write_bytes(whole[:at] + other + whole[at + 1 :])
    with pytest.raises(ValueError, match="request of call_2 is damaged"):
        list(read_bodies(path))
