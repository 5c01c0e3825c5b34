"""Two small models, the Python that has vLLM, and what a model itself says of sampled tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from mixharness.engine import GenerateRequest, Generation, Sampling

VOCAB_SIZE = 512
PROMPT = tuple((7 * i + 3) % VOCAB_SIZE for i in range(150))


@pytest.fixture(scope="session")
def old_folder(tmp_path_factory, saved_model) -> Path:
    return saved_model(tmp_path_factory.mktemp("old"), 0, initializer_range=0.1)


@pytest.fixture(scope="session")
def new_folder(tmp_path_factory, saved_model) -> Path:
    return saved_model(tmp_path_factory.mktemp("new"), 1, initializer_range=0.1)


@pytest.fixture(scope="session")
def server_python() -> str:
    path = Path(__file__).parents[3] / ".venv-vllm/bin/python"
    assert path.exists(), "`make test-vllm` makes it"
    return str(path)


@pytest.fixture(scope="session")
def request_of() -> Callable[..., GenerateRequest]:
    def make(name: str, *, session="s", temperature=1.0, max_tokens=20, stop=()) -> GenerateRequest:
        return GenerateRequest(
            session_id=session,
            request_id=name,
            prompt_ids=PROMPT,
            sampling=Sampling(temperature=temperature, max_tokens=max_tokens, stop_ids=stop),
        )

    return make


@torch.no_grad()
def logits_of(folder: Path, generation: Generation) -> torch.Tensor:
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[*PROMPT, *generation.ids]])
    return model(ids).logits[0, len(PROMPT) - 1 : -1]


@pytest.fixture(scope="session")
def differences() -> Callable[..., torch.Tensor]:
    """Return what the engine says of each token minus what a folder's model says, in fp32."""

    def compare(folder: Path, generation: Generation, temperature: float) -> torch.Tensor:
        logp = (logits_of(folder, generation) / temperature).log_softmax(-1)
        own = logp.gather(1, torch.tensor(generation.ids)[:, None])[:, 0]
        return torch.tensor(generation.logprobs) - own

    return compare


@pytest.fixture(scope="session")
def greediness() -> Callable[[Path, Generation], float]:
    """Return the share of tokens that a folder's model finds likeliest."""

    def share(folder: Path, generation: Generation) -> float:
        likeliest = logits_of(folder, generation).argmax(-1)
        return float((likeliest == torch.tensor(generation.ids)).float().mean())

    return share
