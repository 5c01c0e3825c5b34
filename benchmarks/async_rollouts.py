"""How much `max_staleness` saves where runs are long-tailed, and what staleness costs in learning.

Speed: recorded seconds of real harness runs are waited for again, scaled down, by groups that run
through the trainer's own `Ahead`. `speedup` is of the time for all steps over that of
`max_staleness = 0`; `ideal` is the same ratio from an event simulation that shares no code with it.

Score: a tiny policy learns a small problem by the trainer's own GRPO update, with and without
staleness, from equally many rollouts. Its time is counted in turns of the event loop, so that every
machine prints the same.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import structlog
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mixharness.types import (
    FailureKind,
    GroupKey,
    NodeKind,
    Rollout,
    RolloutGroup,
    Score,
    TokenNode,
    TokenTree,
    VersionSpan,
)
from mixharness_trainer.ahead import Ahead
from mixharness_trainer.attention import TREE_ATTENTION, Layout
from mixharness_trainer.optimizers.grpo import Grpo, GrpoConfig
from mixharness_trainer.policy import Policy
from mixharness_trainer.update import UpdateSettings, update

# fmt: off
RECORDED_S = {
    "agentloop": (0.1, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.2, 1.9,
                  2.1, 2.2, 3.8, 4.1, 5.4, 5.8, 6.2, 6.5, 8.5, 8.9),
    "claude_code": (7.2, 7.4, 9.7, 10.7, 11.7, 12.1, 13.1, 13.4, 14.9, 15.5,
                    15.5, 16.3, 16.4, 18.1, 19.3, 19.6, 23.6, 26.0, 29.5, 42.0),
    "codex": (2.5, 2.6, 2.6, 2.6, 2.9, 2.9, 4.3, 4.3, 5.1, 5.5,
              5.6, 7.3, 8.2, 11.1, 12.3, 13.5, 14.7, 15.2, 16.4, 24.3),
}
# fmt: on
"""Wall seconds of 20 rollouts a harness: `mixharness rollout` on office tasks with the engine
`scripted`, which goes on looking around with a chance of 0.85 at each turn."""
STALENESS = (0, 1, 2, 4)
STEPS, PER_STEP, GROUP_SIZE, CONCURRENCY = 40, 6, 4, 96
UPDATE_S = 6.0
"""Seconds of an update, in the time of the recording."""


def durations(number: int, size: int = GROUP_SIZE) -> list[float]:
    """Return the seconds of a group's rollouts, all in one harness; the same in every run."""
    harness = sorted(RECORDED_S)[number % len(RECORDED_S)]
    return random.Random(number).choices(RECORDED_S[harness], k=size)


# --- Speed: the trainer's own code ---------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Weights:
    """The version that samples now."""

    version: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Replay:
    """A group whose rollouts only wait; `ahead.Group`."""

    waits_s: Sequence[float]
    weights: Weights
    places: asyncio.Semaphore
    oldest_version: int | None = None

    async def collect(self) -> None:
        """Wait for all."""
        async with asyncio.TaskGroup() as group:
            for wait_s in self.waits_s:
                group.create_task(self._rollout(wait_s))

    async def _rollout(self, wait_s: float) -> None:
        async with self.places:
            if self.oldest_version is None:
                self.oldest_version = self.weights.version
            await asyncio.sleep(wait_s)

    def discard(self, kind: FailureKind) -> None:
        """Note nothing: `take` tells who was dropped."""


async def replayed(max_staleness: int, scale: float) -> tuple[float, int]:
    """Return the seconds that all steps take, by the clock, and how many groups were dropped."""
    weights, places = Weights(), asyncio.Semaphore(CONCURRENCY)
    began, dropped, number = time.perf_counter(), 0, 0

    def plan() -> Iterator[Replay]:
        nonlocal number
        while True:
            waits_s = [seconds * scale for seconds in durations(number)]
            number += 1
            yield Replay(waits_s=waits_s, weights=weights, places=places)

    async with Ahead(
        plan(), per_step=PER_STEP, max_staleness=max_staleness, version=lambda: weights.version
    ) as ahead:
        for _ in range(STEPS):
            _, stale = await ahead.take()
            dropped += len(stale)
            await asyncio.sleep(UPDATE_S * scale)
            weights.version += 1
        took_s = time.perf_counter() - began
    return took_s, dropped


# --- Speed: the ideal ----------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Simulated:
    """A group in the simulation."""

    left: int = GROUP_SIZE
    began_at: int | None = None
    """Version at which its first rollout found a place."""


def simulate(max_staleness: int) -> tuple[float, int]:
    """Return seconds and dropped groups where nothing but waiting and updating takes time.

    Rollouts queue for places in the order of the plan; a step begins as soon as enough groups are
    complete and no update runs; what is too old after an update gives its places back at once.
    """
    now, version, steps, busy, planned, dropped = 0.0, 0, 0, 0, 0, 0
    groups: dict[int, _Simulated] = {}
    queue: deque[tuple[int, float]] = deque()
    events: list[tuple[float, int]] = []
    """When, and the group whose rollout ends then; -1 is the end of an update."""
    updating = False
    while True:
        if not updating:
            for number, group in list(groups.items()):
                if group.began_at is not None and version - group.began_at > max_staleness:
                    del groups[number]
                    dropped += 1
                    queue = deque(entry for entry in queue if entry[0] != number)
                    busy -= sum(owner == number for _, owner in events)
                    events = [event for event in events if event[1] != number]
            heapq.heapify(events)
            while len(groups) < (max_staleness + 1) * PER_STEP:
                groups[planned] = _Simulated()
                queue.extend((planned, seconds) for seconds in durations(planned))
                planned += 1
        while queue and busy < CONCURRENCY:
            number, seconds = queue.popleft()
            if groups[number].began_at is None:
                groups[number].began_at = version
            heapq.heappush(events, (now + seconds, number))
            busy += 1
        complete = [number for number, group in groups.items() if not group.left]
        if not updating and len(complete) >= PER_STEP:
            for number in complete[:PER_STEP]:
                del groups[number]
            updating = True
            heapq.heappush(events, (now + UPDATE_S, -1))
        now, owner = heapq.heappop(events)
        if owner >= 0:
            groups[owner].left -= 1
            busy -= 1
            continue
        updating, version, steps = False, version + 1, steps + 1
        if steps == STEPS:
            return now, dropped


# --- Score ---------------------------------------------------------------------------------------

TASKS, CHOICES, SAMPLES, BATCHES, SEEDS = 10, 6, 16, 80, 2
"""Each task asks for two tokens of `CHOICES`; a step takes `PER_STEP` groups of `SAMPLES`."""
UPDATE_TURNS = round(10 * UPDATE_S)
LR = 3e-3


class Learner:
    """A tiny policy, and what it sampled by when its weights were last published."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=TASKS + CHOICES,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=8,
            initializer_range=0.2,
        )
        model = Qwen3ForCausalLM(config).eval()
        model.set_attn_implementation(TREE_ATTENTION)
        adamw = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
        self.policy = Policy(model=model, adamw=adamw, layout=Layout.TREE, tokenizer_files={})
        self.weights = Weights()
        numbers = random.Random(seed)
        self.answers = [[numbers.randrange(CHOICES) for _ in range(2)] for _ in range(TASKS)]
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Let the present weights sample: T tasks, V tokens of the vocabulary."""
        vocab = TASKS + CHOICES
        tasks_T = torch.arange(CHOICES, vocab)
        first = torch.cartesian_prod(tasks_T, torch.arange(vocab))
        one_TV, two_BV = (
            self.policy.model(ids, use_cache=False).logits[:, -1].float().log_softmax(-1)
            for ids in (tasks_T[:, None], first)
        )
        self.first_TV, self.second_TVV = one_TV, two_BV.view(TASKS, vocab, vocab)

    def logprobs(self, task: int, sampled: Sequence[int]) -> torch.Tensor:
        """Return the log-probs [V] of a rollout's next token."""
        return self.second_TVV[task, sampled[0]] if sampled else self.first_TV[task]

    def score(self) -> float:
        """Return the expected share of right tokens over all tasks, exactly."""
        total = 0.0
        for task, (one, two) in enumerate(self.answers):
            first_V, second_V = self.first_TV[task].exp(), self.second_TVV[task, :, two].exp()
            total += float(first_V[one] + first_V @ second_V) / 2
        return total / TASKS

    def learn(self, groups: Sequence[Sampled]) -> None:
        """Update once and publish."""
        optimizer, settings = Grpo(GrpoConfig()), UpdateSettings()
        update(self.policy, [group.result() for group in groups], optimizer, settings)
        self.weights.version += 1
        self.policy.version = self.weights.version
        self.publish()


@dataclass(slots=True, kw_only=True, eq=False)
class Sampled:
    """A group of the learning problem: two tokens a rollout, its wait between them."""

    number: int
    learner: Learner
    rows: list[tuple[Rollout, TokenTree]] = field(default_factory=list)
    oldest_version: int | None = None

    async def collect(self) -> None:
        """Sample all rollouts at once."""
        async with asyncio.TaskGroup() as group:
            for sample, wait_s in enumerate(durations(self.number, SAMPLES)):
                group.create_task(self._rollout(sample, turns=round(10 * wait_s)))

    async def _rollout(self, sample: int, turns: int) -> None:
        learner, task = self.learner, self.number % TASKS
        generator = torch.Generator().manual_seed(self.number * SAMPLES + sample)
        ids, logprobs, versions = list[int](), list[float](), list[VersionSpan]()
        for place in range(2):
            logprobs_V = learner.logprobs(task, ids)
            token = int(torch.multinomial(logprobs_V.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(logprobs_V[token]))
            versions.append(VersionSpan(learner.weights.version, place, place + 1))
            if self.oldest_version is None:
                self.oldest_version = learner.weights.version
            for _ in range(turns if place == 0 else 0):
                await asyncio.sleep(0)
        right = sum(a == b for a, b in zip(ids, learner.answers[task], strict=True))
        name = f"{self.number}-{sample}"
        rollout = Rollout(id=name, key=self.key, calls=(), score=Score(value=right / 2))
        self.rows.append((rollout, _tree(name, task, ids, logprobs, versions)))

    @property
    def key(self) -> GroupKey:
        """The pair it is of."""
        return GroupKey(str(self.number % TASKS), "toy")

    def result(self) -> RolloutGroup:
        """Return it as the update takes it."""
        rollouts, trees = zip(*self.rows, strict=True)
        return RolloutGroup(self.key, rollouts, trees)

    def discard(self, kind: FailureKind) -> None:
        """Note nothing."""


def _tree(
    name: str,
    task: int,
    ids: Sequence[int],
    logprobs: Sequence[float],
    versions: Sequence[VersionSpan],
) -> TokenTree:
    prompt = TokenNode(parent=-1, kind=NodeKind.ENVIRONMENT, ids=(CHOICES + task,), depth=0)
    answer = TokenNode(
        parent=0,
        kind=NodeKind.SAMPLED,
        ids=tuple(ids),
        depth=1,
        rollout_id=name,
        call_id=f"{name}-call",
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        trained=True,
    )
    return TokenTree((prompt, answer))


async def learned(max_staleness: int, seed: int) -> float:
    """Return the score when as many groups were started as in every other call."""
    learner = Learner(seed)
    plan = (Sampled(number=number, learner=learner) for number in range(BATCHES * PER_STEP))
    async with Ahead(
        plan,
        per_step=PER_STEP,
        max_staleness=max_staleness,
        version=lambda: learner.weights.version,
    ) as ahead:
        while True:
            groups, _ = await ahead.take()
            if not groups:
                return learner.score()
            for _ in range(UPDATE_TURNS):
                await asyncio.sleep(0)
            learner.learn(groups)


# --- Report --------------------------------------------------------------------------------------


async def measure(scale: float) -> dict[str, Any]:
    """Measure all: the replays side by side, as they do nothing but wait."""
    replays = await asyncio.gather(*(replayed(k, scale) for k in STALENESS))
    ideals = [simulate(k) for k in STALENESS]
    ahead = STALENESS[1:]
    speedup, ideal = (
        {str(k): t[0][0] / t[n][0] for n, k in enumerate(ahead, 1)} for t in (replays, ideals)
    )
    return {
        "speedup": speedup,
        "ideal": ideal,
        "share_of_ideal": {k: speedup[k] / ideal[k] for k in speedup},
        "stale_groups": {str(k): stale for k, (_, stale) in zip(STALENESS, replays, strict=True)},
        "stale_groups_ideal": {str(k): n for k, (_, n) in zip(STALENESS, ideals, strict=True)},
        "groups": STEPS * PER_STEP,
        "score_before": fmean(Learner(seed).score() for seed in range(SEEDS)),
        "score_sync": await score(0),
        "score_async": await score(ahead[-1]),
    }


async def score(max_staleness: int) -> float:
    """Return the mean score over the seeds."""
    return fmean([await learned(max_staleness, seed) for seed in range(SEEDS)])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1 / 40, help="of the recorded times")
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    torch.set_num_threads(1)
    result = asyncio.run(measure(args.scale))
    if args.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:<16} {value}")


if __name__ == "__main__":
    main()
