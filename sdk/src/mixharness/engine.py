"""The inference-engine interface: token ids in, token ids and log-probs out (rule 1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer

from mixharness.component import Component, ConfigT
from mixharness.types import VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. There is no top_p, top_k or penalty: the distribution contract forbids them.

    Every log-prob is of softmax(logits / temperature) over the full vocabulary.
    """

    temperature: float
    max_tokens: int
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request to an engine. `request_id` is unique; `session_id` gives cache affinity."""

    session_id: str
    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was sampled. `ids` includes the stop token when there is one.

    Raises:
        ValueError: at construction, when ids and log-probs differ in number (never padded).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish_reason: str
    """`stop` or `length`."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"engine gave {len(self.ids)} ids but {len(self.logprobs)} log-probs")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTokenizer:
    """The engine's tokenizer as the proxy needs it, without transformers."""

    tokenizer: Tokenizer
    renderer: str
    """Name of the chat renderer, e.g. `qwen3`."""
    context: int
    """Longest prompt plus completion, in tokens."""


class InferenceEngine(Component[ConfigT], ABC):
    """Samples from the policy. One per run; `generate` is called concurrently."""

    fake_logprobs: ClassVar[bool] = False
    """True when log-probs are made up: policy gradients on them are refused."""

    @abstractmethod
    async def start(self) -> None:
        """Load and get ready; called once before anything else."""

    @property
    @abstractmethod
    def tokenizer(self) -> EngineTokenizer:
        """The tokenizer; valid after `start`."""

    @property
    @abstractmethod
    def policy_version(self) -> int:
        """Number of the weights that sample now."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion. Cancelling the await frees the engine's slot within 1 s.

        Raises:
            EngineError: the engine died or refused; the rollout becomes an infra failure.
        """

    @abstractmethod
    async def load_weights(self, source: Path, policy_version: int) -> None:
        """Take new weights; the caller has closed the gate, so nothing is being sampled.

        `source` is a Hugging Face folder. Cached keys and values of old weights are dropped.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Release everything; may be called twice."""
