"""The tokens that the engine `hf` draws: of the right distribution, and each request's own."""

from types import SimpleNamespace

import pytest
import torch

from mixharness_trainer.engines.hf_draws import Draws

PROBS = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])


def sample(draws: Draws, *names: str, place: int = 3) -> list[int]:
    """Draw a token for each request, all in one batch."""
    states = [
        SimpleNamespace(request_id=name, initial_tokens=[0] * place, generated_tokens=[])
        for name in names
    ]
    scores = PROBS.log().repeat(len(names), 1)
    draws(scores, draws.prepare_tensor_args([SimpleNamespace(state=state) for state in states]))
    output = torch.zeros(2, len(names), dtype=torch.int32)
    draws.sample(scores[None], output)
    logprobs = output[1].view(torch.float32)
    torch.testing.assert_close(logprobs, PROBS[output[0].long()].log())
    return output[0].tolist()


def test_tokens_come_as_often_as_they_are_likely():
    tokens = torch.tensor(sample(Draws(seed=0), *map(str, range(20_000))))
    shares = tokens.bincount(minlength=len(PROBS)) / len(tokens)
    assert shares[PROBS == 0].sum() == 0
    assert shares.tolist() == pytest.approx(PROBS.tolist(), abs=4 * (0.25 / 20_000) ** 0.5)


def test_a_draw_depends_on_seed_request_and_place_alone():
    names = list(map(str, range(64)))
    together = sample(Draws(seed=0), *names)
    assert [sample(Draws(seed=0), name)[0] for name in names] == together
    assert sample(Draws(seed=1), *names) != together
    assert sample(Draws(seed=0), *names, place=4) != together
