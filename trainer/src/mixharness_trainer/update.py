"""One optimizer batch: groups of any mix of harnesses in, new weights and figures out.

Publishing the weights is weights.py; which rollouts to collect is the train loop's.

Shapes: E edges of a packed batch, R rollouts of the optimizer batch, X hidden size.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, groupby
from typing import Any

import structlog
import torch
from torch import Tensor

from mixharness.errors import ConfigError
from mixharness.optimizer import Edges, Optimizer
from mixharness.types import RolloutGroup
from mixharness_trainer.conflict import GradientShares
from mixharness_trainer.critic import Critic
from mixharness_trainer.edges import edge_states, edge_values, head_divergence, head_values
from mixharness_trainer.loss import GroupCounts, token_weights
from mixharness_trainer.packing import Member, PackedBatch, pack
from mixharness_trainer.policy import Policy
from mixharness_trainer.update_metrics import UpdateFigures
from mixharness_trainer.values import group_values, value_metrics

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """How an optimizer batch becomes steps. The learning rate is the policy's."""

    max_grad_norm: float = 1.0
    minibatches: int = 1
    """AdamW steps per epoch; groups are dealt to them whole."""
    epochs: int = 1
    loss_normalization: str | None = None
    """`group`, `rollout`, `token` or `harness`; None is the optimizer's own default."""
    max_tokens_per_batch: int = 8192
    """Tokens of one forward pass. Changes speed and memory, never the gradient."""
    drop_unanimous: bool = False
    """Take groups without any advantage out of the loss's denominators; not with a critic."""
    gradient_cosine_every: int = 0
    """Updates between measurements of the cosine between harnesses' gradients; 0: none."""
    fake_logprobs: bool = False
    """The rollouts' log-probs are made up (the engine says so)."""


def update(
    policy: Policy,
    groups: Sequence[RolloutGroup],
    optimizer: Optimizer[Any],
    settings: UpdateSettings,
) -> dict[str, float]:
    """Update the policy once by the whole mixed batch and return the step's figures.

    Advantages are taken group by group, denominators over the whole batch (TOKENS_AND_TREES
    section 5). Nothing moves when no group is left or no token is trained. `grad_norm` is that of
    the parameters' gradient; `grad_norm/<harness>` that of the loss's gradient with respect to the
    log-probs of that harness's tokens: above 0 exactly when the harness has a say in the update.
    `gradient_cosine/<harness>/<harness>` is of the parameters' gradients, value loss of a shared
    trunk included; mean over the minibatches of the first epoch.

    A critic says its values before anything moves, and learns beside the policy, minibatch by
    minibatch; in its pretraining it learns alone.

    Raises:
        ConfigError: a policy gradient on made-up log-probs, or an unknown normalization.
        ValueError: the policy was not equipped for this optimizer (`Policy.equip`).
        GapError: engine and trainer have disagreed for too many steps.
    """
    if settings.fake_logprobs and optimizer.uses_logprobs:
        message = (
            f"{optimizer.name} needs the log-probs of the policy that sampled, and this engine "
            "makes them up; use an engine that samples, or the optimizer sft"
        )
        raise ConfigError("the run file", [("optimizer.name", message)])
    _check_equipped(policy, optimizer)
    kept = [group for group in groups if len(group.rollouts) >= optimizer.min_group_size]
    scored, valued = _score(policy, kept, optimizer, settings)
    normalization = settings.loss_normalization or optimizer.normalization
    drop = settings.drop_unanimous and optimizer.critic is None
    weighed = _weigh([s for s in scored if s.has_contrast or not drop], normalization)
    figures = _Step(policy, optimizer, settings).run(weighed)
    policy.step += 1
    totals = {
        "groups": len(kept),
        "groups_dropped": len(groups) - len(kept),
        "rollouts": sum(len(group.rollouts) for group in kept),
        "lr": policy.lr,
    }
    return {**totals, **_harness_metrics(scored), **figures, **valued}


def _check_equipped(policy: Policy, optimizer: Optimizer[Any]) -> None:
    if optimizer.critic is not None and policy.critic is None:
        raise ValueError(f"optimizer {optimizer.name} asks for a critic; call Policy.equip first")
    if optimizer.reference != "none" and policy.reference is None:
        raise ValueError(f"optimizer {optimizer.name} reads a reference; call Policy.equip first")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """A group's rollouts with their advantages."""

    harness: str
    members: list[Member]

    @property
    def has_contrast(self) -> bool:
        return _has_contrast(self.members)


def _has_contrast(members: Sequence[Member]) -> bool:
    return any(any(member.advantages) for member in members)


def _by_contrast(groups: Sequence[list[Member]]) -> list[list[Member]]:
    """Return the members of groups with contrast, and those of the others, where there are any."""
    kinds = [
        [m for group in groups if _has_contrast(group) is kind for m in group]
        for kind in (True, False)
    ]
    return [kind for kind in kinds if kind]


def _score(
    policy: Policy,
    groups: Sequence[RolloutGroup],
    optimizer: Optimizer[Any],
    settings: UpdateSettings,
) -> tuple[list[_Scored], dict[str, float]]:
    """Return each group with its advantages, and what is to be said of the critic's values."""
    if optimizer.critic is None:
        return [_members(group, optimizer, None) for group in groups], {}
    began = time.monotonic()
    values = group_values(policy, groups, settings.max_tokens_per_batch)
    took = {"time/values_s": time.monotonic() - began}
    scored = [_members(g, optimizer, rows) for g, rows in zip(groups, values, strict=True)]
    returns = [[member.returns for member in item.members] for item in scored]
    return scored, {**value_metrics(values, returns), **took}


def _members(
    group: RolloutGroup, optimizer: Optimizer[Any], values: Sequence[Sequence[float]] | None
) -> _Scored:
    advantages = optimizer.advantages(group, values)
    expected = [tree.trained_tokens for tree in group.trees]
    if [len(row) for row in advantages] != expected:
        raise ValueError(f"optimizer {optimizer.name} must give one advantage per trained token")
    returns = [[]] * len(expected) if values is None else optimizer.returns(group)
    columns = zip(group.rollouts, group.trees, advantages, returns, strict=True)
    harness = group.key.harness
    members = [
        Member(rollout_id=r.id, tree=tree, advantages=row, harness=harness, returns=goal)
        for r, tree, row, goal in columns
    ]
    if not optimizer.uses_logprobs:  # a likelihood has no baseline: what it ignores is no sample
        members = [member for member in members if any(member.advantages)]
    return _Scored(harness=harness, members=members)


def _weigh(scored: Sequence[_Scored], normalization: str) -> list[list[Member]]:
    """Number and weigh the rollouts of the batch, denominators over all of it."""
    counted = [item for item in scored if item.members]
    counts = [
        GroupCounts(harness=s.harness, tokens=[m.tree.trained_tokens for m in s.members])
        for s in counted
    ]
    number = count()
    return [
        [
            replace(member, rollout=next(number), weight=weight)
            for member, weight in zip(item.members, weights, strict=True)
        ]
        for item, weights in zip(counted, token_weights(counts, normalization), strict=True)
    ]


def _harness_metrics(scored: Sequence[_Scored]) -> dict[str, int]:
    """Return the number of groups, of those that teach anything, and of tokens, per harness."""
    metrics: Counter[str] = Counter()
    for item in scored:
        metrics[f"groups/{item.harness}"] += 1
        metrics[f"groups_with_contrast/{item.harness}"] += item.has_contrast
        metrics[f"tokens/{item.harness}"] += sum(m.tree.trained_tokens for m in item.members)
    return dict(metrics)


class _Step:
    """The passes over one optimizer batch."""

    def __init__(self, policy: Policy, optimizer: Optimizer[Any], settings: UpdateSettings) -> None:
        self.policy, self.optimizer, self.settings = policy, optimizer, settings
        self.critic = policy.critic if optimizer.critic is not None else None
        every = settings.gradient_cosine_every
        self.apart = bool(every) and policy.step % every == 0
        """Whether each harness's gradient is taken apart."""

    def run(self, groups: list[list[Member]]) -> dict[str, float]:
        """Take the steps and return their figures."""
        harness_of = {m.rollout: m.harness for members in groups for m in members}
        self.apart = self.apart and len(set(harness_of.values())) > 1
        minibatches = [self._pack(part) for part in self._deal(groups)]
        self.figures = UpdateFigures(passes=self.settings.epochs, harness_of=harness_of)
        if self.critic is not None and self.critic.pretraining:
            self._pretrain(self.critic, minibatches)
        else:
            self._train(minibatches)
        if self.critic is not None and any(minibatches):
            self.critic.updates += 1
        gap = self.figures.gap(self.policy) if self.optimizer.uses_logprobs else {}
        return {**self.figures.metrics(), **gap}

    def _train(self, minibatches: list[list[PackedBatch]]) -> None:
        """Take `epochs` times `minibatches` steps, the critic's along with the policy's."""
        olds: list[list[Tensor | None]] = [[None] * len(part) for part in minibatches]
        if self.settings.epochs * len(minibatches) > 1:
            olds = [[self._frozen(batch) for batch in part] for part in minibatches]
        for epoch in range(self.settings.epochs):
            for batches, old in zip(minibatches, olds, strict=True):
                pairs = list(zip(batches, old, strict=True))
                gradient = partial(self._accumulate, scale=len(minibatches), first=epoch == 0)
                if self.apart and epoch == 0:
                    self._accumulate_apart(pairs, gradient)
                else:
                    for batch, old_E in pairs:
                        gradient(batch, old_E)
                self._descend()
                self._descend_critic()

    def _accumulate_apart(
        self,
        pairs: Sequence[tuple[PackedBatch, Tensor | None]],
        gradient: Callable[[PackedBatch, Tensor | None], None],
    ) -> None:
        """Add all batches' gradients harness by harness, and note how far they agree."""
        shares = GradientShares(self.policy.trained)
        for harness, same in groupby(pairs, key=lambda pair: self._harness_of(pair[0])):
            for batch, old_E in same:
                gradient(batch, old_E)
            shares.take(harness)
        self.figures.cosines.append(shares.put_back())

    def _harness_of(self, batch: PackedBatch) -> str:
        """Return the harness of a batch that was packed apart."""
        return self.figures.harness_of[int(batch.rollout_E[0])]

    def _pretrain(self, critic: Critic, minibatches: list[list[PackedBatch]]) -> None:
        """Let the critic learn alone; of the policy, only its gap to the engine is looked at."""
        self.figures.passes = 1
        self.figures.critic_passes = critic.settings.pretraining_passes
        for batch in chain.from_iterable(minibatches):
            self.figures.note(batch, {})
            self.figures.gaps.append((batch, self._frozen(batch)))
        for _ in range(critic.settings.pretraining_passes):
            for batches in minibatches:
                for batch in batches:
                    self._value_pass(critic, batch, len(minibatches))
                self._descend_critic()

    def _deal(self, groups: list[list[Member]]) -> list[list[list[Member]]]:
        """Deal whole groups to minibatches, in an order that depends on the step alone."""
        number = min(self.settings.minibatches, len(groups)) or 1
        if number == 1:
            return [groups]
        shuffled = random.Random(self.policy.step).sample(groups, len(groups))
        return [shuffled[start::number] for start in range(number)]

    def _pack(self, groups: list[list[Member]]) -> list[PackedBatch]:
        """Pack groups without contrast apart: their batches need no backward pass.

        Groups of one kind are merged into one tree, so that system prompt and tools, which all
        tasks of a harness share, are read once. Where harnesses are taken apart, no batch has two.
        """
        limit, policy = self.settings.max_tokens_per_batch, self.policy
        parts: dict[str, list[list[Member]]] = defaultdict(list)
        for group in groups:
            parts[group[0].harness if self.apart else ""].append(group)
        packs = [
            pack(_by_contrast(part), max_tokens=limit, layout=policy.layout)
            for part in parts.values()
        ]
        return [batch.to(policy.model.device) for batch in chain.from_iterable(packs)]

    @torch.no_grad()
    def _frozen(self, batch: PackedBatch) -> Tensor:
        return edge_values(self.policy.model, batch, self.policy.layout)[0]

    def _accumulate(
        self, batch: PackedBatch, old_E: Tensor | None, *, scale: int, first: bool
    ) -> None:
        """Add one packed batch's gradient; `scale` undoes the cut into minibatches."""
        states_EX = edge_states(self.policy.model, batch, self.policy.layout)
        reads, logp_ref_E = self._read(batch, states_EX)
        # The loss is taken on leaves: where it asks for no gradient, the model's backward
        # pass, two thirds of the cost, is left out.
        leaves = {name: read.detach().requires_grad_() for name, read in reads.items()}
        old_E = reads["logp"].detach() if old_E is None else old_E
        edges = Edges(
            **leaves,
            logp_old=old_E,
            logp_rollout=batch.logp_rollout_E,
            logp_ref=logp_ref_E,
            advantage=batch.advantage_E,
            weight=batch.weight_E * scale,
            rollout=batch.rollout_E,
        )
        output = self.optimizer.loss(edges)
        output.loss.backward()
        outputs: list[tuple[Tensor, Tensor | None]] = [
            (reads[name], leaf.grad)
            for name, leaf in leaves.items()
            if leaf.grad is not None and leaf.grad.any()
        ]
        critic = self.critic
        if critic is not None and critic.trunk is None:
            outputs.append((self._value_loss(critic, critic.read(states_EX), batch, scale), None))
        if outputs:
            values, gradients = zip(*outputs, strict=True)
            torch.autograd.backward(values, gradients)
        if critic is not None and critic.trunk is not None:
            self._value_pass(critic, batch, scale)
        means = {"entropy": float(edges.entropy.detach().mean()), **output.metrics}
        self.figures.note(batch, means)
        self.figures.note_pull(batch, edges.logp.grad)
        self.figures.sums["loss"] += float(output.loss.detach()) / (scale * self.settings.epochs)
        if first:
            self.figures.gaps.append((batch, old_E))

    def _read(
        self, batch: PackedBatch, states_EX: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return what has a gradient, by its name in `Edges`, and the reference's log-probs."""
        model, reference = self.policy.model, self.policy.reference
        logp_E, entropy_E = head_values(model, states_EX, batch)
        reads = {"logp": logp_E, "entropy": entropy_E}
        if reference is None or self.optimizer.reference == "none":
            return reads, None
        with torch.no_grad():
            reference_EX = edge_states(reference, batch, self.policy.layout)
            logp_ref_E, _ = head_values(reference, reference_EX, batch)
        if self.optimizer.reference == "full":
            reads["kl_ref"] = head_divergence(model, states_EX, reference, reference_EX, batch)
        return reads, logp_ref_E

    def _value_pass(self, critic: Critic, batch: PackedBatch, scale: int) -> None:
        """Add the gradient of the value loss, from a forward pass of the critic's own."""
        began = time.monotonic()
        value_E = critic.values(self.policy.model, batch, self.policy.layout)
        self._value_loss(critic, value_E, batch, scale).backward()
        self.figures.sums["time/critic_s"] += time.monotonic() - began

    def _value_loss(
        self, critic: Critic, value_E: Tensor, batch: PackedBatch, scale: int
    ) -> Tensor:
        loss = critic.loss(value_E, batch, scale)
        self.figures.sums["critic/loss"] += float(loss.detach()) / scale
        return critic.settings.coefficient * loss

    def _descend(self) -> None:
        """Clip and step; a gradient that is not finite moves nothing and is counted."""
        norm = torch.nn.utils.clip_grad_norm_(self.policy.trained, self.settings.max_grad_norm)
        self.figures.grad_norms.append(float(norm))
        if torch.isfinite(norm):
            self.policy.adamw.step()
        else:
            self.figures.sums["steps_skipped"] += 1
            log.warning("update_skipped", reason="gradient is not finite", step=self.policy.step)
        self.policy.adamw.zero_grad(set_to_none=True)

    def _descend_critic(self) -> None:
        if self.critic is None:
            return
        norm = self.critic.descend(self.settings.max_grad_norm)
        self.figures.critic_grad_norms.append(norm)
        self.figures.sums["steps_skipped"] += not math.isfinite(norm)
