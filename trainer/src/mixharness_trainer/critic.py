"""The value model of optimizers that ask for one. When it is trained: update.py.

V(s_t) is a linear head's reading of the last hidden state where token t is predicted from, in the
packed layout of the policy's own passes: one value per edge.

Shapes: E edges, X hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mixharness.optimizer import CriticSettings
from mixharness_trainer.adamw import adamw_state, restore_adamw
from mixharness_trainer.attention import Layout
from mixharness_trainer.edges import edge_states
from mixharness_trainer.packing import PackedBatch

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Critic:
    """A value head, the trunk under it unless that is the policy's, and their AdamW."""

    settings: CriticSettings
    head: torch.nn.Linear
    trunk: PreTrainedModel | None
    """None: the head stands on the policy's trunk, which only the policy's optimizer moves."""
    adamw: torch.optim.AdamW
    updates: int = 0
    """Updates that it has seen."""

    @classmethod
    def new(cls, settings: CriticSettings, policy: PreTrainedModel) -> Critic:
        """Make a critic that says 0 everywhere; a separate trunk begins as a copy of the policy's.

        Args:
            settings: the optimizer's.
            policy: whose decoder, device and attention backend it takes.
        """
        trunk = None
        if settings.trunk == "separate":
            trunk = copy.deepcopy(policy.get_decoder()).requires_grad_(True)
        size = policy.config.get_text_config().hidden_size
        head = torch.nn.Linear(size, 1, dtype=torch.float32, device=policy.device)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        parameters = [*head.parameters(), *(trunk.parameters() if trunk else ())]
        adamw = torch.optim.AdamW(parameters, lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0)
        return cls(settings=settings, head=head, trunk=trunk, adamw=adamw)

    @property
    def pretraining(self) -> bool:
        """Say whether the policy must still wait for the critic."""
        return self.updates < self.settings.pretraining_steps

    def values(self, policy: PreTrainedModel, batch: PackedBatch, layout: Layout) -> Tensor:
        """Return V(s_t) [E], from a forward pass of its own; without gradient in a shared trunk."""
        if self.trunk is not None:
            return self.read(edge_states(self.trunk, batch, layout))
        with torch.no_grad():
            states_EX = edge_states(policy, batch, layout)
        return self.read(states_EX)

    def read(self, states_EX: Tensor) -> Tensor:
        """Return V(s_t) [E] from the hidden states of the critic's trunk."""
        return torch.nn.functional.linear(states_EX.float(), self.head.weight, self.head.bias)[:, 0]

    def loss(self, value_E: Tensor, batch: PackedBatch, scale: float) -> Tensor:
        """Return Σ weight · (V - G)², normalized as the policy's loss is and not corrected.

        Source: ClawGym II (arXiv:2608.16798), L_Value.

        Args:
            value_E: V(s_t), with the gradient.
            batch: weights and returns.
            scale: what undoes the cut into minibatches.
        """
        return (scale * batch.weight_E * (value_E - batch.return_E).square()).sum()

    @torch.no_grad()
    def rows(
        self,
        policy: PreTrainedModel,
        batches: Sequence[PackedBatch],
        layout: Layout,
        lengths: Sequence[int],
    ) -> list[list[float]]:
        """Return the values of each rollout's trained tokens, in tree order.

        Args:
            policy: whose trunk a shared critic reads.
            batches: all of the optimizer batch.
            layout: theirs.
            lengths: trained tokens of each rollout, by its index in the optimizer batch.
        """
        rows = [[0.0] * length for length in lengths]
        for batch in batches:
            columns = (batch.rollout_E, batch.token_E, self.values(policy, batch, layout))
            for rollout, token, value in zip(*(c.tolist() for c in columns), strict=True):
                rows[rollout][token] = value
        return rows

    def descend(self, max_grad_norm: float) -> float:
        """Clip and step, and return the gradient's norm; one that is not finite moves nothing."""
        parameters = self.adamw.param_groups[0]["params"]
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
        if torch.isfinite(norm):
            self.adamw.step()
        else:
            log.warning("critic_update_skipped", reason="gradient is not finite")
        self.adamw.zero_grad(set_to_none=True)
        return float(norm)

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return its own parameters; a shared trunk's are the policy's."""
        parts = {"head": self.head} | ({"trunk": self.trunk} if self.trunk is not None else {})
        return {
            f"{part}.{name}": parameter
            for part, module in parts.items()
            for name, parameter in module.named_parameters()
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return `weight.<parameter>`, and AdamW's state as `adamw.<parameter>.<state>`."""
        named = self.named_parameters()
        weights = {f"weight.{name}": parameter.detach() for name, parameter in named.items()}
        state = adamw_state(self.adamw, named)
        return weights | {f"adamw.{name}": value for name, value in state.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` returned."""
        named, prefix = self.named_parameters(), "adamw."
        for name, parameter in named.items():
            parameter.data.copy_(tensors[f"weight.{name}"])
        state = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        restore_adamw(self.adamw, named, state)
