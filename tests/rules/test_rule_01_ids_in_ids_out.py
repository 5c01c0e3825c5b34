"""Rule 1: token ids in, token ids and one log-prob each out; lengths that differ are an error."""

from dataclasses import replace

import pytest

from mixharness import FailureKind
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.tree.tokens import prompt_ids

pytestmark = pytest.mark.anyio


class PaddingIsTempting(ScriptedEngine):
    """Loses the last log-prob on the way."""

    async def generate(self, request):
        played = await super().generate(request)
        return replace(played, logprobs=played.logprobs[:-1])


async def test_the_record_is_what_the_engine_was_given_and_gave(bench):
    engine = bench.engine(bench.call("cp name.txt answer.txt"), "Copied.")
    rollout = await bench.run(engine)
    assert (rollout.failure, rollout.reward, len(rollout.calls)) == (None, 1.0, 2)
    for call, asked, gave in zip(rollout.calls, engine.asked, engine.gave, strict=True):
        assert prompt_ids(rollout.calls, call.id) == asked.prompt_ids
        assert (call.sampled_ids, call.logprobs) == (gave.ids, gave.logprobs)
        assert len(set(call.logprobs)) == len(call.sampled_ids)
        assert call.temperature == asked.sampling.temperature == 0.7


async def test_a_missing_logprob_is_an_error_and_never_padded(bench):
    rollout = await bench.run(PaddingIsTempting(ScriptedConfig(turns=("Hello.",))))
    assert [call for call in rollout.calls if call.sampled_ids] == []
    assert rollout.failure.kind is FailureKind.ENGINE_ERROR
    assert "7 ids but 6 log-probs" in rollout.failure.detail
    assert not rollout.usable
