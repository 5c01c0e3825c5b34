"""Rule 3: what a harness is shown is parsed from the ids that are trained; raw bytes are kept."""

import orjson
import pytest

from mixharness.proxy.log import read_bodies
from mixharness.proxy.renderer import ChatRenderer

pytestmark = pytest.mark.anyio

ODD_ARGUMENTS = r'{ "command" :  "printf \u0041da",' + '\n\t"timeout": 5.0e3 }'
ODD_CALL = f'Now.\n<tool_call>\n{{"name": "bash", "arguments": {ODD_ARGUMENTS}}}\n</tool_call>'


async def test_blocks_are_the_parse_of_the_stored_ids_and_bytes_are_kept(bench):
    engine = bench.engine(ODD_CALL, " It is  Ada. ", "Done.")
    harness = bench.rewriter(rewrites=False)
    rollout = await bench.run(engine, harness=harness)
    stored = bench.store.load(rollout.id)
    bodies = read_bodies(bench.store.path(rollout.id))
    kept = [tuple(b.data for b in bodies if b.call == call.id) for call in stored.calls]
    assert kept == harness.wire

    renderer, decode = ChatRenderer(engine.tokenizer), engine.tokenizer.tokenizer.decode
    for call, (_, response) in zip(stored.calls, harness.wire, strict=True):
        shown = orjson.loads(response)["choices"][0]["message"]
        blocks = [call["function"] for call in shown.get("tool_calls") or []]
        turn = renderer.parse(call.sampled_ids)
        assert (shown["content"] or "") == turn.text
        assert [(b["name"], b["arguments"]) for b in blocks] == list(turn.tool_calls)
        sampled = decode(list(call.sampled_ids))
        assert [b["arguments"] for b in blocks if b["arguments"] not in sampled] == []
    assert renderer.parse(stored.calls[0].sampled_ids).tool_calls == (("bash", ODD_ARGUMENTS),)
