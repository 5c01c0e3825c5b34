"""The policy-optimizer interface, over groups (advantages) and edges (loss). Torch stays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mixharness.component import Component, ConfigT
from mixharness.types import RolloutGroup

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """One predicted token each (TOKENS_AND_TREES section 4); E of them, all tensors of shape [E].

    Labels are not a shift by one: at a fork one position predicts several targets.
    """

    logp: Tensor
    """log π_θ(target) under softmax(logits / T); has the gradient."""
    logp_old: Tensor
    """log π_old: trainer weights before this update, detached."""
    logp_rollout: Tensor
    """log π_rollout, as the engine reported it."""
    logp_ref: Tensor | None
    """log π_ref, or None when no reference is used."""
    entropy: Tensor
    """Full-vocabulary entropy at the predicting position; has the gradient."""
    advantage: Tensor
    weight: Tensor
    """Normalization (group, rollout, token or harness); the loss is a weighted sum over edges."""
    rollout: Tensor
    """Index of the edge's rollout in the optimizer batch (int64)."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A scalar to minimise, and detached figures for the log."""

    loss: Tensor
    metrics: dict[str, float]


class Optimizer(Component[ConfigT], ABC):
    """Turns groups into advantages and edges into a loss."""

    min_group_size: ClassVar[int] = 1
    """Smaller groups are dropped and counted."""
    uses_logprobs: ClassVar[bool] = True
    """False for SFT: rollouts with made-up log-probs are then welcome."""
    normalization: ClassVar[str] = "group"
    """Default of `loss_normalization`: `group`, `rollout`, `token` or `harness`."""

    @abstractmethod
    def advantages(
        self, group: RolloutGroup, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """Return one list per rollout with one advantage per trained token.

        Tokens are in tree order (nodes in order, trained ones only). `values`, in the same shape,
        come from a critic. Torch-free, called once per group and step.
        """

    @abstractmethod
    def loss(self, edges: Edges) -> LossOutput:
        """Return the weighted sum over the edges of one (micro-)batch."""
