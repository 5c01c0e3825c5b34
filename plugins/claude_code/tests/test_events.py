from mixharness_claude_code.events import EventStream

RESULT = (
    b'{"type":"result","subtype":"success","is_error":false,"terminal_reason":"completed",'
    b'"result":"caf\xc3\xa9","usage":{"input_tokens":3},"news":[1]}\n'
)


def fed(*chunks: bytes) -> EventStream:
    stream = EventStream()
    for chunk in chunks:
        stream.feed(chunk)
    return stream


def test_a_result_is_read_however_the_bytes_are_cut():
    for cut in range(len(RESULT)):
        stream = fed(b'{"type":"system"}\n' + RESULT[:cut], RESULT[cut:])
        assert (stream.message, stream.reason) == ("café", "completed")


def test_half_a_line_is_no_result():
    assert fed(RESULT[:-1]).reason == ""


def test_the_last_of_several_results_counts():
    second = RESULT.replace("café".encode(), b"second")
    assert fed(RESULT + b'{"type":"system","subtype":"init"}\n' + second).message == "second"


def test_success_in_an_api_error_is_not_believed():
    line = (
        b'{"type":"result","subtype":"success","is_error":true,'
        b'"terminal_reason":"api_error","result":"API Error: 500"}\n'
    )
    stream = fed(line)
    assert (stream.reason, stream.message) == ("error", "API Error: 500")


def test_limits_have_their_own_reasons():
    for terminal, reason in (("max_turns", "max_turns"), ("prompt_too_long", "context_overflow")):
        line = '{"type":"result","is_error":true,"terminal_reason":"%s","errors":["why"]}\n'
        stream = fed((line % terminal).encode())
        assert (stream.reason, stream.message) == (reason, "why")


def test_noise_is_passed_over():
    noise = b'not json "result"\n[1]\n{"type":"user","text":"\\"type\\":\\"result\\""}\n"result"\n'
    bad = b'{"type":"result","is_error":{"a":1}}\n'
    assert fed(noise + bad).reason == ""
    assert fed(noise + RESULT).reason == "completed"
