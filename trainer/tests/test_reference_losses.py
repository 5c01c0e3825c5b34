"""A second implementation of all losses, and a proof by random trees that both agree.

The reference shares no code with the trainer: it reads every root-to-leaf path by itself with the
models' own forward passes, loops over tokens as the papers write their sums, and takes its steps
with plain gradient descent. Two steps are taken, so that ρ is not 1 in the second.
"""

import copy
import math
import random
from dataclasses import dataclass, replace

import pytest
import torch

from mixharness.optimizer import CriticSettings
from mixharness_trainer.critic import Critic
from mixharness_trainer.optimizers import Grpo, GrpoConfig, Ppo, PpoConfig, Sft, SftConfig
from mixharness_trainer.update import UpdateSettings, update

TOLERANCE = 1e-5
STEP = 0.1
MAX_NORM = 1.0
NORMALIZATIONS = ["group", "rollout", "token", "harness"]
CORRECTIONS = ["token", "mask", "sequence", "off"]


# --- the reference: paths, token by token -------------------------------------------------------


@dataclass
class Token:
    """A trained token as one path reads it."""

    logp: torch.Tensor
    kl: dict[str, torch.Tensor]
    value: torch.Tensor
    logp_rollout: float
    credit: float


def paths_of(tree):
    parents = {node.parent for node in tree.nodes}
    for leaf in range(len(tree.nodes)):
        if leaf not in parents:
            path, at = [], leaf
            while at >= 0:
                path.insert(0, at)
                at = tree.nodes[at].parent
            yield path


def read(models, tree):
    """Return {(node, place): Token}, each token from the first path that holds it."""
    tokens = {}
    for path in paths_of(tree):
        ids = torch.tensor([[i for index in path for i in tree.nodes[index].ids]])
        logits = models["policy"](input_ids=ids).logits[0]
        ref_logits = models["reference"](input_ids=ids).logits[0].detach()
        trunk = models["trunk"] or models["policy"].model
        said = models["head"](trunk(input_ids=ids).last_hidden_state[0])[:, 0]
        start = 0
        for index in path:
            node = tree.nodes[index]
            for place in range(len(node.ids) if node.trained else 0):
                if (index, place) in tokens:
                    continue
                at, target = start + place - 1, node.ids[place]
                row = torch.log_softmax(logits[at] / node.temperature, -1)
                ref = torch.log_softmax(ref_logits[at] / node.temperature, -1)
                gap = ref[target] - row[target]
                kl = {
                    "exact": (row.exp() * (row - ref)).sum(),
                    "k2": gap * gap / 2,
                    "k3": torch.exp(gap) - gap - 1,
                }
                rollout_logp = node.logprobs[place]
                tokens[index, place] = Token(row[target], kl, said[at], rollout_logp, node.credit)
            start += len(node.ids)
    return dict(sorted(tokens.items()))


def kept_branches(tree):
    """Return the trained tokens of every path, but for paths that only begin another one."""
    branches = [
        [(i, p) for i in path if tree.nodes[i].trained for p in range(len(tree.nodes[i].ids))]
        for path in paths_of(tree)
    ]
    return [b for b in branches if not any(b == o[: len(b)] and len(o) > len(b) for o in branches)]


def ppo_advantages(tree, tokens, reward, gamma, lam):
    """Return the paper's Â and G of every trained token, along each branch; branches must agree."""
    found = {}
    for kept in kept_branches(tree):
        for t, key in enumerate(kept):
            advantage = 0.0
            for steps, later in enumerate(kept[t:]):
                last = t + steps == len(kept) - 1
                after = 0.0 if last else tokens[kept[t + steps + 1]].value.item()
                delta = reward * last + gamma * after - tokens[later].value.item()
                advantage += (gamma * lam) ** steps * delta
            both = (advantage, gamma ** (len(kept) - 1 - t) * reward)
            assert key not in found or found[key] == pytest.approx(both, abs=1e-5)
            found[key] = both
    return found


def weight_of(normalization, lengths, harnesses, g, i):
    """Return the weight of a token of rollout i of group g."""
    own = lengths[g][i]
    if normalization == "token":
        return 1 / sum(sum(row) for row in lengths)
    if normalization == "rollout":
        return 1 / sum(len(row) for row in lengths) / own
    if normalization == "group":
        return 1 / len(lengths) / len(lengths[g]) / own
    alike = harnesses.count(harnesses[g])
    return 1 / len(set(harnesses)) / alike / len(lengths[g]) / own


def correction_of(mode, tokens, old, key):
    ratio = math.exp(old[key] - tokens[key].logp_rollout)
    if mode == "sequence":
        return min(math.exp(sum(old[k] - tokens[k].logp_rollout for k in tokens)), 2.0)
    if mode == "mask":
        return ratio if 0.5 <= ratio <= 2.0 else 0.0
    return min(ratio, 2.0) if mode == "token" else 1.0


def objective(token, old, advantage, correction, optimizer):
    """Return w·[min(ρÂ, clip(ρ)Â) - β·kl] of one token."""
    ratio = torch.exp(token.logp - old)
    clipped = ratio if 0.8 <= ratio.item() <= 1.2 else torch.tensor(0.8 if ratio < 1 else 1.2)
    total = torch.minimum(ratio * advantage, clipped * advantage)
    if optimizer.name == "grpo" and optimizer.config.beta > 0:
        total = total - optimizer.config.beta * token.kl[optimizer.config.kl]
    return correction * total


@dataclass
class Batch:
    """What does not change between the steps: of each rollout its Â, G, log π_old, and weights."""

    advantages: list
    returns: list
    old: list


def advantages_of(optimizer, group, read_tokens):
    """Return the advantages and returns of each rollout of a group."""
    rewards = [rollout.score.value for rollout in group.rollouts]
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    for reward, tree, tokens in zip(rewards, group.trees, read_tokens, strict=True):
        if optimizer.name == "ppo":
            settings = optimizer.config
            both = ppo_advantages(tree, tokens, reward, settings.gamma, settings.lam)
            yield {k: both[k][0] for k in tokens}, {k: both[k][1] for k in tokens}
        elif optimizer.name == "sft":
            yield dict.fromkeys(tokens, float(reward >= 1.0)), {}
        else:
            yield dict.fromkeys(tokens, (reward - mean) / (std + 1e-6) if std > 1e-6 else 0.0), {}


def losses(models, groups, optimizer, normalization, before):
    """Return policy and value loss of the whole batch; `before` is a Batch, or None at first."""
    tokens = [[read(models, tree) for tree in group.trees] for group in groups]
    if before is None:
        scored = [list(advantages_of(optimizer, g, t)) for g, t in zip(groups, tokens, strict=True)]
        before = Batch(
            [[a for a, _ in rows] for rows in scored],
            [[r for _, r in rows] for rows in scored],
            [[{k: t[k].logp.item() for k in t} for t in rows] for rows in tokens],
        )
    lengths = [[len(t) for t in rows] for rows in tokens]
    if optimizer.name == "sft":  # a rollout that does not pass is no sample
        passing = [[any(a.values()) for a in rows] for rows in before.advantages]
        lengths = [
            [n for n, ok in zip(*both, strict=True) if ok]
            for both in zip(lengths, passing, strict=True)
        ]
        lengths = [row for row in lengths if row]
    harnesses = [group.key.harness for group in groups]
    policy_loss = value_loss = torch.zeros(())
    for g, rows in enumerate(tokens):
        for i, own in enumerate(rows):
            for key, token in own.items():
                advantage = before.advantages[g][i][key] * token.credit
                if optimizer.name == "sft":
                    assert normalization == "token"
                    policy_loss = policy_loss - advantage * token.logp / sum(map(sum, lengths))
                    continue
                weight = weight_of(normalization, lengths, harnesses, g, i)
                old = before.old[g][i]
                w = correction_of(optimizer.config.correction, own, old, key)
                part = objective(token, old[key], advantage, w, optimizer)
                policy_loss = policy_loss - weight * part
                if optimizer.name == "ppo":
                    error = token.value - before.returns[g][i][key]
                    value_loss = value_loss + weight * error * error
    return policy_loss, value_loss, before


def parameters_of(models):
    """Return the policy's, and the critic's: what each optimizer moves."""
    own = [[models["policy"]]]
    if models["with_critic"]:
        own.append([models["head"], models["trunk"]] if models["trunk"] else [models["head"]])
    return [[p for module in modules for p in module.parameters()] for modules in own]


def descend(models, groups, optimizer, normalization, epochs):
    """Return (losses, gradients) of each epoch of plain gradient descent."""
    before, log = None, []
    for _ in range(epochs):
        policy_loss, value_loss, before = losses(models, groups, optimizer, normalization, before)
        (policy_loss + 0.5 * value_loss).backward()
        gradients = []
        for parameters in parameters_of(models):
            whole = torch.cat([p.grad.flatten() for p in parameters])
            shrink = min(1.0, MAX_NORM / (whole.norm().item() + 1e-6))
            gradients.append(whole * shrink)
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= STEP * shrink * parameter.grad
                    parameter.grad = None
        log.append((policy_loss.item(), value_loss.item(), gradients))
    return log


# --- random cases, and the trainer's side -------------------------------------------------------


def random_runs(rng, *, fork):
    """Return a tree with at least three trained spans; a fork, or a row with untrained branches."""
    runs, spans, tip = [(-1, "e", rng.randint(2, 5))], 0, 0
    while spans < 3:
        kind = rng.choice("esu" if runs[tip][1] == "e" else "esse")
        parent = rng.randrange(-1, len(runs)) if fork and rng.random() < 0.6 else tip
        kind = "e" if parent < 0 else kind
        runs.append((parent, kind, rng.randint(1, 4)))
        if kind != "u":
            tip = len(runs) - 1
        spans += kind == "s"
    return runs


def random_groups(rng, tree, group, *, fork, smallest):
    groups = []
    for number in range(2):
        trees = []
        for member in range(rng.randint(smallest, 3)):
            name = f"g{number}-{member}"
            built = tree(name, random_runs(rng, fork=fork), seed=rng.randrange(10**6))
            trees.append(
                replace(
                    built,
                    nodes=tuple(replace(n, credit=rng.choice([1.0, 0.5])) for n in built.nodes),
                )
            )
        rewards = [rng.choice([0.0, 0.25, 1.0]) for _ in trees]
        groups.append(group(rng.choice(["one", "two"]), trees, rewards, task=f"t{number}"))
    return groups


class Recorder(torch.optim.SGD):
    """Plain gradient descent that keeps each gradient it is given."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=STEP)
        self.gradients = []

    def step(self, closure=None):
        grads = [
            torch.zeros_like(p) if p.grad is None else p.grad
            for p in self.param_groups[0]["params"]
        ]
        self.gradients.append(torch.cat([grad.flatten() for grad in grads]))
        return super().step(closure)


def near_rollouts(groups, models, rng):
    """Put the engine's log-probs near the policy's: no mode of correction is all or none."""
    made = []
    for one in groups:
        trees = []
        for tree in one.trees:
            with torch.no_grad():
                tokens = read(models, tree)
            nodes = list(tree.nodes)
            for index, node in enumerate(nodes):
                if node.trained:
                    logprobs = tuple(
                        tokens[index, p].logp.item() + rng.gauss(0, 0.5)
                        for p in range(len(node.ids))
                    )
                    nodes[index] = replace(node, logprobs=logprobs)
            trees.append(replace(tree, nodes=tuple(nodes)))
        made.append(replace(one, trees=tuple(trees)))
    return made


def agree(case, policy, model, rng, groups, trunk=None):
    """Compare two epochs of `update` with the reference's, and return the trainer's figures."""
    optimizer, normalization = case
    tested = policy(seed=1)
    tested.reference = model(seed=1).requires_grad_(False)
    tested.critic = Critic.new(
        CriticSettings(trunk=trunk or "separate", coefficient=0.5), tested.model
    )
    with torch.no_grad():
        for parameter in tested.critic.named_parameters().values():
            parameter += 0.1 * torch.randn(parameter.shape)
        for parameter in tested.reference.parameters():
            parameter += 0.03 * torch.randn(parameter.shape)
    models = {
        "policy": copy.deepcopy(tested.model),
        "reference": copy.deepcopy(tested.reference),
        "trunk": copy.deepcopy(tested.critic.trunk),
        "head": copy.deepcopy(tested.critic.head),
        "with_critic": optimizer.critic is not None,
    }
    groups = near_rollouts(groups, models, rng)
    recorders = [Recorder(list(tested.model.parameters()))]
    tested.adamw = recorders[0]
    if models["with_critic"]:
        own = tested.critic.named_parameters().values()
        recorders.append(Recorder(list(own)))
        tested.critic.adamw = recorders[1]
    expected = descend(models, groups, optimizer, normalization, epochs=2)

    settings = UpdateSettings(
        epochs=2,
        max_grad_norm=MAX_NORM,
        loss_normalization=normalization,
        max_tokens_per_batch=rng.choice([40, 10_000]),
    )
    metrics = update(tested, groups, optimizer, settings)

    for epoch, (_, _, gradients) in enumerate(expected):
        for recorder, wanted in zip(recorders, gradients, strict=True):
            assert wanted.norm() > 1e-3
            gap = (recorder.gradients[epoch] - wanted).norm() / wanted.norm()
            assert gap.item() <= TOLERANCE
    mean = sum(loss for loss, _, _ in expected) / 2
    assert metrics["loss"] == pytest.approx(mean, rel=TOLERANCE, abs=1e-6)
    if models["with_critic"]:
        mean = sum(loss for _, loss, _ in expected) / 2
        assert metrics["critic/loss"] == pytest.approx(mean, rel=TOLERANCE)
    return metrics


@pytest.mark.parametrize("seed", range(4))
def test_grpo_agrees(tree, group, policy, model, seed):
    rng = random.Random(seed)
    config = GrpoConfig(
        beta=0.3 if seed else 0.0,
        kl=["exact", "exact", "k2", "k3"][seed],
        correction=CORRECTIONS[seed],
    )
    groups = random_groups(rng, tree, group, fork=True, smallest=2)

    metrics = agree((Grpo(config), NORMALIZATIONS[seed]), policy, model, rng, groups)

    assert ("kl_ref" in metrics) == (config.beta > 0)
    assert 0 < metrics["ratio_clipped"] < 1


@pytest.mark.parametrize("seed", range(4))
def test_ppo_agrees(tree, group, policy, model, seed):
    """Forks at γ = λ = 1, rows of spans below; each with both kinds of critic."""
    rng = random.Random(100 + seed)
    fork = seed % 2 == 0
    config = PpoConfig(
        gamma=1.0 if fork else 0.95,
        lam=1.0 if fork else 0.9,
        correction=CORRECTIONS[seed],
        value_pretraining_steps=0,
    )
    groups = random_groups(rng, tree, group, fork=fork, smallest=1)
    trunk = "shared" if seed < 2 else "separate"

    metrics = agree((Ppo(config), NORMALIZATIONS[3 - seed]), policy, model, rng, groups, trunk)

    assert 0 < metrics["ratio_clipped"] < 1


@pytest.mark.parametrize("seed", range(2))
def test_sft_agrees(tree, group, policy, model, seed):
    rng = random.Random(200 + seed)
    groups = random_groups(rng, tree, group, fork=True, smallest=1)
    passing = [replace(r, score=replace(r.score, value=1.0)) for r in groups[0].rollouts]
    groups[0] = replace(groups[0], rollouts=tuple(passing))

    agree((Sft(SftConfig()), "token"), policy, model, rng, groups)
