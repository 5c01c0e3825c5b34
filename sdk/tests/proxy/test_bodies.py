"""Raw bodies: byte-exact whatever changed, and small where a history only grew."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixharness.proxy.bodies import Body, BodyWriter, read_bodies

CHUNKS = [bytes([97 + n]) * 40 + b"0123456789"[: n + 1] for n in range(6)]
"""Few pieces, so that bodies share beginnings, middles and ends."""


def write(path, datas, agent=""):
    writer = BodyWriter(path)
    for number, data in enumerate(datas):
        writer.append(Body(call=f"c{number}", kind="request", agent=agent, data=data))
    writer.close()
    return [body.data for body in read_bodies(path)]


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from(CHUNKS), max_size=8).map(b"".join), max_size=40))
def test_what_was_written_is_read(tmp_path_factory, datas):
    assert write(tmp_path_factory.mktemp("bodies") / "bodies.zst", datas) == datas


@pytest.mark.parametrize("where", ["end", "start"])
def test_a_history_that_grows_is_stored_once_per_key_frame(tmp_path, where):
    """Even when every body differs from its first byte on, as with a changing header."""
    numbers = random.Random(0)
    turns = [numbers.randbytes(500) for _ in range(96)]
    datas = []
    for n in range(1, len(turns) + 1):
        head = b"" if where == "end" else b"%06d" % n
        datas.append(head + b"".join(turns[:n]))
    path = tmp_path / "bodies.zst"
    assert write(path, datas) == datas
    whole = sum(len(data) for data in (datas[0], datas[32], datas[64]))
    assert path.stat().st_size < whole + 96 * 900


def test_a_damaged_body_is_refused(tmp_path):
    path = tmp_path / "bodies.zst"
    write(path, [b"hello hello", b"hello again"])
    path.write_bytes(path.read_bytes().replace(b'"same":6', b'"same":5'))
    with pytest.raises(ValueError, match="the request of c1 is damaged"):
        list(read_bodies(path))


def test_a_torn_record_ends_the_file(tmp_path):
    path = tmp_path / "bodies.zst"
    write(path, [b"one", b"two"])
    path.write_bytes(path.read_bytes()[:-2])
    assert [body.data for body in read_bodies(path)] == [b"one"]
