"""The proof before training refuses every engine that does not say what the trainer finds."""

from dataclasses import replace

import pytest

from mixharness.types import VersionSpan
from mixharness_trainer.engines.hf import HfConfig, HfEngine
from mixharness_trainer.policy import Policy
from mixharness_trainer.self_test import SelfTestError, self_test


class Lying(HfEngine):
    """The real engine; `ask` changes what it is asked, `say` what it answers."""

    def ask(self, request):
        return request

    def say(self, generation):
        return generation

    async def generate(self, request):
        if request.request_id == "start":  # its own
            return await super().generate(request)
        return self.say(await super().generate(self.ask(request)))


class OfAnotherTemperature(Lying):
    def ask(self, request):
        return replace(request, sampling=replace(request.sampling, temperature=1.0))


class OfOtherPrompts(Lying):
    def ask(self, request):
        return replace(request, prompt_ids=(0, *request.prompt_ids))


class OfOtherIds(Lying):
    def say(self, generation):
        return replace(generation, ids=generation.ids[::-1])


class OfAnotherVersion(Lying):
    def say(self, generation):
        return replace(generation, versions=(VersionSpan(9, 0, len(generation.ids)),))


class OfFewerTokens(Lying):
    def ask(self, request):
        return replace(request, sampling=replace(request.sampling, max_tokens=15))


@pytest.fixture(scope="module")
def folders(tmp_path_factory, saved_model):
    return [saved_model(tmp_path_factory.mktemp("model"), seed) for seed in range(2)]


async def proven(engine_type, engine_folder, policy_folder) -> float:
    engine = engine_type(HfConfig(model=str(engine_folder), cache_mb=32))
    policy = Policy.load(policy_folder, lr=0.0, device="cpu")
    await engine.start()
    try:
        return await self_test(policy, engine)
    finally:
        await engine.stop()


@pytest.mark.anyio
async def test_an_engine_that_says_the_truth_passes(folders):
    assert await proven(HfEngine, folders[0], folders[0]) <= 1e-5


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("engine_type", "message"),
    [
        (OfAnotherTemperature, "fit T = 1 better"),
        (OfOtherPrompts, "disagree on the same tokens"),
        (OfOtherIds, "disagree on the same tokens"),
        (OfAnotherVersion, r"stamped \[9\]"),
        (OfFewerTokens, "asked for 16 tokens"),
    ],
)
async def test_an_engine_that_does_not_is_refused(folders, engine_type, message):
    with pytest.raises(SelfTestError, match=message):
        await proven(engine_type, folders[0], folders[0])


@pytest.mark.anyio
async def test_an_engine_with_other_weights_is_refused(folders):
    with pytest.raises(SelfTestError, match="disagree on the same tokens"):
        await proven(HfEngine, folders[1], folders[0])
