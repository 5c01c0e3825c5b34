"""Cost of building a token tree per new token, from short plain rollouts to long forked ones.

Prints CPU time; `linearity` is the dearest size over the cheapest one, both per token.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import timeit
from typing import Any

from mixharness.tree import Pruned, build_tree
from mixharness.types import Delivery, ModelCall

VOCAB_SIZE = 32_000
NEW_TOKENS, SAMPLED = 180, 40
"""Per call: what the program added, and what the policy answered."""
TURNS, LEAVES = (10, 100, 300), (1, 8, 64)
LEAST_CALLS = 600
"""Calls built per timing, so that the clock's own cost is nothing beside them."""


def conversation(turns: int, leaves: int) -> list[ModelCall]:
    """Return a chain of `turns` calls with forks all along it, `leaves` ends in all.

    Every other fork begins within an earlier call's text, the rest after its answer.
    """
    numbers = random.Random(0)
    chain: list[ModelCall] = []
    for _ in range(turns):
        chain.append(_call(len(chain), numbers, chain[-1] if chain else None, cut=0))
    calls = list(chain)
    for fork in range(leaves - 1):
        parent = chain[fork * turns // leaves]
        cut = SAMPLED + numbers.randrange(1, NEW_TOKENS) if fork % 2 else 0
        calls.append(_call(len(calls), numbers, parent, cut=cut))
    return calls


def _call(index: int, numbers: random.Random, parent: ModelCall | None, cut: int) -> ModelCall:
    """Return a call that shares all of its parent's tokens but the last `cut`."""
    end = 0
    if parent is not None:
        end = parent.parent_len + len(parent.environment_ids) + len(parent.sampled_ids) - cut
    return ModelCall(
        id=f"call_{index}",
        rollout_id="rollout",
        index=index,
        parent_call=parent.id if parent else None,
        parent_len=end,
        environment_ids=tuple(numbers.randrange(VOCAB_SIZE) for _ in range(NEW_TOKENS)),
        sampled_ids=tuple(numbers.randrange(VOCAB_SIZE) for _ in range(SAMPLED)),
        logprobs=(-1.0,) * SAMPLED,
        delivery=Delivery.DELIVERED,
    )


def ns_per_token(calls: list[ModelCall], repeats: int) -> float:
    """Return the CPU time of building the tree, the best of `repeats`, by its new tokens."""
    pruned = Pruned(credits=dict.fromkeys((call.id for call in calls), 1.0), reasons={})
    number = -(-LEAST_CALLS // len(calls))
    timer = timeit.Timer(lambda: build_tree(calls, pruned), timer=time.process_time)
    best_s = min(timer.repeat(repeats, number)) / number
    return best_s * 1e9 / (len(calls) * (NEW_TOKENS + SAMPLED))


def measure(repeats: int) -> dict[str, Any]:
    """Return the figures of every size."""
    sizes = [(turns, leaves) for turns in TURNS for leaves in LEAVES]
    costs = {
        f"{turns} turns, {leaves} leaves": ns_per_token(conversation(turns, leaves), repeats)
        for turns, leaves in sizes
    }
    return {"ns_per_token": costs, "linearity": max(costs.values()) / min(costs.values())}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    result = measure(args.repeats)
    if args.json:
        print(json.dumps(result))
        return
    for size, cost in result["ns_per_token"].items():
        print(f"{size:<24} {cost:6.1f} ns per token")
    print(f"linearity {result['linearity']:.2f} (goal: at most 1.5)")


if __name__ == "__main__":
    main()
