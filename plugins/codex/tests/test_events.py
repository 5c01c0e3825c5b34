from mixharness_codex.events import EventStream

SAID = '{"type":"item.completed","item":{"id":"i","type":"agent_message","text":"café"}}\n'.encode()
DONE = b'{"type":"turn.completed","usage":{"input_tokens":3}}\n'
FAILED = b'{"type":"turn.failed","error":{"message":"%s"}}\n'


def fed(*chunks: bytes) -> EventStream:
    stream = EventStream()
    for chunk in chunks:
        stream.feed(chunk)
    return stream


def test_an_ending_is_read_however_the_bytes_are_cut():
    whole = SAID + DONE
    for cut in range(len(whole)):
        stream = fed(whole[:cut], whole[cut:])
        assert (stream.reason, stream.message) == ("completed", "café")


def test_half_a_line_is_no_ending():
    assert fed(DONE[:-1]).reason == ""


def test_failures_have_their_reasons():
    overflow = fed(SAID, FAILED % b"Codex ran out of room in the model's context window. Start")
    assert overflow.reason == "context_overflow"
    assert overflow.message.startswith("Codex ran out of room")
    assert fed(FAILED % b"stream disconnected").reason == "error"


def test_noise_is_passed_over():
    noise = b'no json\n[1]\n{"type":1}\n{"item":{}}\n{"type":"item.completed","item":"x"}\n\n'
    assert fed(noise).reason == ""
    assert fed(noise, SAID, DONE).message == "café"
