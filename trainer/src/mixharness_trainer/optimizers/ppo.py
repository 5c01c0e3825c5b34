"""Proximal policy optimization with a critic (TOKENS_AND_TREES section 5). Critic: critic.py.

Kept positions are the trained tokens. What follows a position is the next kept one of its branch,
however much environment stands between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from mixharness.errors import ConfigError
from mixharness.optimizer import CriticSettings, Edges, LossOutput, Optimizer
from mixharness.types import RolloutGroup, TokenTree
from mixharness_trainer.optimizers.surrogate import (
    SurrogateConfig,
    clipped_objective,
    corrected_loss,
)


class PpoConfig(SurrogateConfig):
    """Settings of PPO and of its critic."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount γ from one kept token to the next; below 1 a rollout must not fork."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """λ of generalized advantage estimation; below 1 a rollout must not fork."""
    critic: Literal["separate", "shared"] = "separate"
    """A value model with weights of its own, which begin as the policy's, or one linear head on the
    policy's last hidden states."""
    critic_lr: float = Field(default=5e-4, ge=0)
    """Learning rate of the head, and of a separate critic's trunk."""
    value_coefficient: float = Field(default=0.5, gt=0)
    """Weight of the value loss; it matters most where critic and policy share a trunk."""
    value_pretraining_steps: int = Field(default=1, ge=0)
    """First steps, in which only the critic learns (of a shared trunk the head alone)."""
    value_pretraining_passes: int = Field(default=4, gt=0)
    """Passes over the rollouts of such a step."""


class Ppo(Optimizer[PpoConfig]):
    """The paper's PPO: clipped ratio, corrected for the rollout policy; a critic's baseline."""

    name = "ppo"
    config_type = PpoConfig
    min_group_size: ClassVar[int] = 1
    normalization: ClassVar[str] = "token"

    @property
    def critic(self) -> CriticSettings:
        """Return the critic that the config describes."""
        config = self.config
        return CriticSettings(
            trunk=config.critic,
            lr=config.critic_lr,
            coefficient=config.value_coefficient,
            pretraining_steps=config.value_pretraining_steps,
            pretraining_passes=config.value_pretraining_passes,
        )

    def returns(self, group: RolloutGroup) -> list[list[float]]:
        """Return G_t: the reward, discounted by γ for each kept token between t and the last.

        Source: ClawGym II (arXiv:2608.16798), the masked discounted return of L_Value.

        Raises:
            ConfigError: γ < 1 or λ < 1, and a rollout forks.
        """
        self._refuse_forks(group)
        gamma = self.config.gamma
        lengths = [tree.trained_tokens for tree in group.trees]
        pairs = zip(group.rewards, lengths, strict=True)
        return [[reward * gamma ** (n - 1 - t) for t in range(n)] for reward, n in pairs]

    def advantages(
        self, group: RolloutGroup, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """Return Σ_l (γλ)^l δ_t+l along the branch, δ_t = r_t + γ·V(s_n(t)) - V(s_t).

        R_i is paid at the last kept token, after which V = 0. At γ = λ = 1 the sum is R_i - V(s_t)
        on every branch, so that forks make no difference.

        Source: ClawGym II (arXiv:2608.16798), the masked Â_t, and its form on trees.

        Raises:
            ConfigError: γ < 1 or λ < 1, and a rollout forks.
            ValueError: no values were given.
        """
        if values is None:
            raise ValueError("ppo needs a value for every trained token, from its critic")
        self._refuse_forks(group)
        return [self._along(reward, row) for reward, row in zip(group.rewards, values, strict=True)]

    def loss(self, edges: Edges) -> LossOutput:
        """Return -Σ weight · w · min(ρÂ, clip(ρ)Â). The value loss is the critic's.

        Source: ClawGym II (arXiv:2608.16798), L_PPO, of which it is the negative.
        """
        objective_E, clipped = clipped_objective(edges, self.config)
        loss, limited = corrected_loss(edges, self.config, objective_E)
        return LossOutput(loss, clipped | limited)

    @property
    def _telescopes(self) -> bool:
        return self.config.gamma == self.config.lam == 1

    def _along(self, reward: float, values: Sequence[float]) -> list[float]:
        """Return the advantages of one branch, or of a whole tree where the sum telescopes."""
        if self._telescopes:
            return [reward - value for value in values]
        gamma, advantage, following = self.config.gamma, 0.0, 0.0
        backwards: list[float] = []
        for value in reversed(values):
            delta = (0.0 if backwards else reward) + gamma * following - value
            advantage = delta + gamma * self.config.lam * advantage
            backwards.append(advantage)
            following = value
        return backwards[::-1]

    def _refuse_forks(self, group: RolloutGroup) -> None:
        if self._telescopes:
            return
        key = "gamma" if self.config.gamma < 1 else "lam"
        for rollout, tree in zip(group.rollouts, group.trees, strict=True):
            if (call := _first_fork(tree)) is not None:
                message = (
                    f"rollout {rollout.id} forks before call {call}: its tokens have more than one "
                    f"future, and {key} = {getattr(self.config, key):g} would have to say how they "
                    "share credit; set gamma = lam = 1, with which every future counts alike"
                )
                raise ConfigError("the optimizer's settings", [(f"optimizer.{key}", message)])


def _first_fork(tree: TokenTree) -> str | None:
    """Return the first trained call that does not come after all trained ones before it."""
    last = -1  # the latest trained node
    latest: list[int] = []  # for each node, the latest trained one on the way to it
    for index, node in enumerate(tree.nodes):
        above = latest[node.parent] if node.parent >= 0 else -1
        if node.trained and above != last:
            return node.call_id
        last = index if node.trained else last
        latest.append(index if node.trained else above)
    return None
