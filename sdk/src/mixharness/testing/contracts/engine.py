"""The contract of inference engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mixharness.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from mixharness.testing.contracts.component import ComponentContract


@pytest.mark.anyio
class EngineContract(ComponentContract):
    """Ids in, ids and log-probs out, many at a time.

    A subclass may give the fixtures `prompt` and `weights`.
    """

    @pytest.fixture
    def prompt(self) -> str:
        """Return a prompt the engine can go on from."""
        return "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"

    @pytest.fixture
    def weights(self) -> Path:
        """Return a folder of weights that `load_weights` takes."""
        return Path()

    @pytest.fixture
    async def started(self, component: InferenceEngine[Any]) -> AsyncIterator[InferenceEngine[Any]]:
        """The engine, started and stopped."""
        await component.start()
        yield component
        await component.stop()

    async def _generate(
        self, engine: InferenceEngine[Any], prompt: str, number: int = 0, max_tokens: int = 32
    ) -> Generation:
        tokenizer = engine.tokenizer.tokenizer
        stop = tokenizer.token_to_id("<|im_end|>")
        stops = () if stop is None else (stop,)
        request = GenerateRequest(
            session_id=f"s{number}",
            request_id=f"s{number}-0",
            prompt_ids=tuple(tokenizer.encode(prompt, add_special_tokens=False).ids),
            sampling=Sampling(temperature=1.0, max_tokens=max_tokens, stop_ids=stops),
        )
        return await engine.generate(request)

    async def test_one_logprob_per_id(self, started: InferenceEngine[Any], prompt: str) -> None:
        """Rule 1; version spans cover all ids."""
        found = await self._generate(started, prompt)
        assert found.ids
        assert len(found.ids) == len(found.logprobs)
        assert all(value <= 0.0 for value in found.logprobs)
        assert [i for s in found.versions for i in range(s.start, s.end)] == list(
            range(len(found.ids))
        )
        assert {span.version for span in found.versions} == {started.policy_version}

    async def test_max_tokens_ends_with_length(
        self, started: InferenceEngine[Any], prompt: str
    ) -> None:
        """The limit is kept, and said."""
        found = await self._generate(started, prompt, max_tokens=1)
        assert len(found.ids) == 1
        assert found.finish_reason == "length"

    async def test_many_at_a_time(self, started: InferenceEngine[Any], prompt: str) -> None:
        """Requests of other sessions do not disturb each other."""
        found = await asyncio.gather(*(self._generate(started, prompt, i) for i in range(16)))
        assert all(each.ids for each in found)

    async def test_the_version_rises_with_the_weights(
        self, started: InferenceEngine[Any], prompt: str, weights: Path
    ) -> None:
        """Every token carries the version that sampled it."""
        version = started.policy_version + 1
        await started.load_weights(weights, version)
        found = await self._generate(started, prompt)
        assert started.policy_version == version
        assert {span.version for span in found.versions} == {version}

    async def test_stop_may_be_called_twice(self, component: InferenceEngine[Any]) -> None:
        """Every path of a run may end it."""
        await component.start()
        await component.stop()
        await component.stop()
