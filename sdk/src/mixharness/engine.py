"""The inference-engine interface: token ids in, token ids and log-probs out (rule 1)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer

from mixharness.component import Component, ConfigT
from mixharness.parsers import TurnParsers
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
    """`stop`, `length`, or `cancelled` in a `SamplingCancelled`."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"engine gave {len(self.ids)} ids but {len(self.logprobs)} log-probs")


class SamplingCancelled(asyncio.CancelledError):
    """What `generate` may raise when its await is cancelled: it holds what was sampled so far."""

    def __init__(self, generation: Generation) -> None:
        super().__init__()
        self.generation = generation


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTokenizer:
    """The engine's tokenizer as the proxy needs it, without transformers."""

    tokenizer: Tokenizer
    renderer: str
    """Name of the chat renderer: a family, e.g. `qwen3`, or `template` for `chat_template`."""
    context: int
    """Longest prompt plus completion, in tokens."""
    chat_template: str = ""
    """Jinja text of the model's own chat template; read when `renderer` is `template`."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """What that template may name: `bos_token`, `eos_token`, …"""
    rerender: bool = False
    """Follow the template to the letter: where a delta would differ from it, the conversation is
    rendered anew, which forks it. Otherwise such a template is refused."""
    parsers: TurnParsers | None = None
    """For a `template` whose turns are not read otherwise."""


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

    @property
    def updates_in_flight(self) -> bool:
        """Whether `load_weights` may be called while requests are being sampled.

        They are paused then, and go on with the new weights: one generation has several versions.
        """
        return False

    @property
    def takes_adapters(self) -> bool:
        """Whether `load_weights` takes a folder that holds an adapter only, in peft's layout.

        It is of the weights that the engine began with, and stands in for the one before it.
        """
        return False

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one completion. Cancelling the await frees the engine's slot within 1 s.

        Raises:
            asyncio.CancelledError: the await was cancelled; a `SamplingCancelled` keeps the tokens
                sampled so far on record, where they are never trained.
            EngineError: the engine died or refused; the rollout becomes an infra failure.
        """

    @abstractmethod
    async def load_weights(self, source: Path, policy_version: int) -> None:
        """Take new weights; the caller has closed the gate.

        Nothing is being sampled meanwhile, unless `updates_in_flight` says that it may. `source` is
        a Hugging Face folder. Cached keys and values of old weights are dropped.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Release everything; may be called twice."""
