import json

import pytest

from mixharness_openclaw.result import ResultReader

META = {"stopReason": "stop", "agentMeta": {"usage": {"input": 3}}}
DONE = {"payloads": [{"text": "café", "mediaUrl": None}], "meta": META}


def printed(value) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def fed(*chunks: bytes) -> ResultReader:
    reader = ResultReader()
    for chunk in chunks:
        reader.feed(chunk)
    return reader


def test_a_result_is_read_however_the_bytes_are_cut():
    whole = printed(DONE)
    for cut in range(len(whole)):
        reader = fed(whole[:cut], whole[cut:])
        assert (reader.reason, reader.message) == ("completed", "café")


def test_half_a_result_is_none():
    assert fed(printed(DONE)[:-3]).reason == ""


@pytest.mark.parametrize(
    ("value", "reason", "message"),
    [
        ({"ok": False, "error": {"type": "cli_error", "message": "no"}}, "error", "no"),
        ({"payloads": [{"text": "bad", "isError": True}], "meta": META}, "error", "bad"),
        ({"payloads": [], "meta": {"stopReason": "timeout"}}, "error", "stopped by timeout"),
        (
            {"meta": {"error": {"kind": "context_overflow", "message": "full"}}},
            "context_overflow",
            "full",
        ),
        ({"payloads": [], "meta": META}, "completed", ""),
    ],
)
def test_failures_have_their_reasons(value, reason, message):
    reader = fed(printed(value))
    assert (reader.reason, reader.message) == (reason, message)


def test_noise_is_passed_over():
    noise = b'warning: {\n{\n"payloads": 1\n}\n{"payloads": []}\n'
    assert fed(noise).reason == ""
    assert fed(noise, printed(DONE)).message == "café"
