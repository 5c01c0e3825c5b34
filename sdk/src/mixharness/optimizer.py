"""The policy-optimizer interface, over groups (advantages) and edges (loss). Torch stays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

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
    kl_ref: Tensor | None = None
    """KL(π_θ ‖ π_ref) over the full vocabulary at the predicting position; has the gradient. None
    unless the optimizer's `reference` is "full"."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A scalar to minimise, and detached figures for the log."""

    loss: Tensor
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings:
    """The value model that an optimizer asks for; the trainer makes, trains and saves it.

    V(s_t) is read where the trained token t is predicted from, before it is sampled. The value loss
    is the squared error to the optimizer's `returns`, normalized as the policy's loss is.
    """

    trunk: Literal["separate", "shared"] = "separate"
    """`separate`: the policy's architecture with weights of its own, which begin as the policy's.
    `shared`: one linear head on the policy's last hidden states."""
    lr: float = 5e-4
    """Learning rate of the head, and of a separate trunk."""
    coefficient: float = 0.5
    """Weight of the value loss."""
    pretraining_steps: int = 0
    """First updates, in which only the critic learns; of a shared trunk the head alone."""
    pretraining_passes: int = 1
    """Passes over the batch of such an update."""


class Optimizer(Component[ConfigT], ABC):
    """Turns groups into advantages and edges into a loss."""

    min_group_size: ClassVar[int] = 1
    """Smaller groups are dropped and counted."""
    uses_logprobs: ClassVar[bool] = True
    """False for SFT: rollouts with made-up log-probs are then welcome."""
    normalization: ClassVar[str] = "group"
    """Default of `loss_normalization`: `group`, `rollout`, `token` or `harness`."""

    @property
    def reference(self) -> Literal["none", "sampled", "full"]:
        """Say what the loss reads of the policy as it was when the run began.

        `sampled`: `Edges.logp_ref`; `full`: `Edges.kl_ref` as well.
        """
        return "none"

    @property
    def critic(self) -> CriticSettings | None:
        """Return the critic whose values `advantages` needs; None when it needs none."""
        return None

    def returns(self, group: RolloutGroup) -> list[list[float]]:
        """Return what the critic learns to predict, in the shape of the advantages: the reward."""
        pairs = zip(group.rewards, group.trees, strict=True)
        return [[reward] * tree.trained_tokens for reward, tree in pairs]

    @abstractmethod
    def advantages(
        self, group: RolloutGroup, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """Return one list per rollout with one advantage per trained token.

        Tokens are in tree order (nodes in order, trained ones only). `values`, in the same shape,
        come from the critic. Torch-free, called once per group and step.
        """

    @abstractmethod
    def loss(self, edges: Edges) -> LossOutput:
        """Return the weighted sum over the edges of one (micro-)batch."""
