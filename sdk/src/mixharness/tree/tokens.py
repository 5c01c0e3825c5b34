"""The token tree: which tokens share a prefix (TOKENS_AND_TREES section 3).

Building costs what is new in each call, not its history. Who continues whom is decided in the
call graph; advantages and packing are the trainer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from mixharness.tree.prune import Pruned
from mixharness.types import ModelCall, NodeKind, TokenNode, TokenTree


@dataclass(slots=True, eq=False)
class _Run:
    """A growing tree's node: tokens `source[start:end]`. Splitting moves bounds, copies nothing."""

    parent: _Run | None
    source: tuple[int, ...]
    start: int
    end: int
    depth: int
    made_from: TokenNode | None = None
    """The sampled or replayed node this stands for; None for environment, which alone splits."""
    children: list[_Run] = field(default_factory=list)
    by_token: dict[int, _Run] = field(default_factory=dict)
    """Environment children by their first token; no two start alike."""

    @property
    def length(self) -> int:
        return self.end - self.start


class _Builder:
    """A prefix tree under construction. A position is always the end of a run."""

    def __init__(self) -> None:
        self.root = _Run(parent=None, source=(), start=0, end=0, depth=0)

    def add_environment(self, at: _Run, ids: tuple[int, ...]) -> _Run:
        """Walk `ids` down from the end of `at`, sharing what is known, and return the end."""
        done = 0
        while done < len(ids):
            child = at.by_token.get(ids[done])
            if child is None:
                return self._append(at, ids, done)
            same = _common(child, ids, done)
            at = child if same == child.length else self.split(child, same)
            done += same
        return at

    def add_whole(self, at: _Run, node: TokenNode) -> _Run:
        """Append a sampled or replayed run; it is never shared with another one."""
        if not node.ids:
            return at
        run = _Run(at, node.ids, 0, len(node.ids), at.depth + at.length, made_from=node)
        at.children.append(run)
        return run

    def split(self, run: _Run, length: int) -> _Run:
        """Cut an environment run after `length` tokens; return the head, `run` is the tail."""
        assert run.parent is not None
        cut = run.start + length
        head = _Run(run.parent, run.source, run.start, cut, run.depth)
        siblings = run.parent.children
        siblings[siblings.index(run)] = head
        run.parent.by_token[run.source[run.start]] = head
        run.parent, run.start, run.depth = head, cut, run.depth + length
        head.children.append(run)
        head.by_token[run.source[cut]] = run
        return head

    def finish(self) -> TokenTree:
        """Freeze the tree, depth first, so that parents precede their children."""
        nodes: list[TokenNode] = []
        waiting = [(child, -1) for child in reversed(self.root.children)]
        while waiting:
            run, parent = waiting.pop()
            waiting.extend((child, len(nodes)) for child in reversed(run.children))
            nodes.append(_freeze(run, parent))
        return TokenTree(nodes=tuple(nodes))

    def _append(self, at: _Run, ids: tuple[int, ...], start: int) -> _Run:
        run = _Run(at, ids, start, len(ids), at.depth + at.length)
        at.children.append(run)
        at.by_token[ids[start]] = run
        return run


def build_tree(calls: Sequence[ModelCall], pruned: Pruned) -> TokenTree:
    """Join the calls of one rollout by their shared tokens.

    Every call stands in the tree once; `pruned` says which are trained and why others are not.

    Raises:
        ValueError: a call's `parent_len` falls inside sampled ids or beyond its parent, or a call
            is neither kept nor has a reason.
    """
    builder = _Builder()
    prompt_ends: dict[str, _Run] = {}
    ends: dict[str, _Run] = {}
    for call in sorted(calls, key=lambda call: call.index):
        at = builder.root
        if call.parent_call is not None:
            at = _attach(builder, call, prompt_ends[call.parent_call], ends[call.parent_call])
        for ids, replayed in _environment(call):
            if replayed:
                node = TokenNode(parent=-1, kind=NodeKind.REPLAYED, ids=ids, depth=0)
                at = builder.add_whole(at, node)
            else:
                at = builder.add_environment(at, ids)
        prompt_ends[call.id] = at
        ends[call.id] = builder.add_whole(at, _sampled(call, pruned))
    return builder.finish()


def merge_trees(trees: Sequence[TokenTree]) -> TokenTree:
    """Join the trees of a group: equal environment tokens merge, sampled ones never do."""
    builder = _Builder()
    for tree in trees:
        ends: list[_Run] = []
        for node in tree.nodes:
            at = ends[node.parent] if node.parent >= 0 else builder.root
            if node.kind is NodeKind.ENVIRONMENT:
                ends.append(builder.add_environment(at, node.ids))
            else:
                ends.append(builder.add_whole(at, node))
    return builder.finish()


def prompt_ids(calls: Sequence[ModelCall], call_id: str) -> tuple[int, ...]:
    """Return all the tokens the engine got for one call.

    Raises:
        KeyError: there is no such call.
    """
    by_id = {call.id: call for call in calls}
    call = by_id[call_id]
    pieces = [call.environment_ids]
    limit = call.parent_len
    while call.parent_call is not None:
        call = by_id[call.parent_call]
        if limit > call.parent_len:
            new = call.environment_ids + call.sampled_ids
            pieces.append(new[: limit - call.parent_len])
        limit = min(limit, call.parent_len)
    return tuple(token for piece in reversed(pieces) for token in piece)


def _attach(builder: _Builder, call: ModelCall, prompt_end: _Run, end: _Run) -> _Run:
    """Return the run that ends after `call.parent_len` tokens of its parent."""
    if call.parent_len == end.depth + end.length:
        return end
    run = prompt_end
    while run.parent is not None and run.depth >= call.parent_len:
        run = run.parent
    length = call.parent_len - run.depth
    if length == run.length:
        return run
    if length > run.length or run.made_from is not None:
        raise ValueError(
            f"call {call.id}: parent_len {call.parent_len} is no place to continue call "
            f"{call.parent_call}; it must not fall inside sampled ids nor beyond the parent"
        )
    return builder.split(run, length)


def _environment(call: ModelCall) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield a call's new prompt tokens as (ids, is_replayed) runs."""
    bounds = [0, *(edge for span in call.replayed for edge in span), len(call.environment_ids)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        if end > start:
            yield call.environment_ids[start:end], number % 2 == 1


def _sampled(call: ModelCall, pruned: Pruned) -> TokenNode:
    credit = pruned.credits.get(call.id, 0.0)
    trained = credit > 0
    if not trained and call.id not in pruned.reasons:
        raise ValueError(f"call {call.id} is neither trained nor has a reason why it is not")
    return TokenNode(
        parent=-1,
        kind=NodeKind.SAMPLED,
        ids=call.sampled_ids,
        depth=0,
        rollout_id=call.rollout_id,
        call_id=call.id,
        logprobs=call.logprobs,
        versions=call.versions,
        temperature=call.temperature,
        trained=trained,
        credit=credit,
        reason="" if trained else pruned.reasons[call.id],
    )


def _freeze(run: _Run, parent: int) -> TokenNode:
    if run.made_from is None:
        ids = run.source[run.start : run.end]
        return TokenNode(parent=parent, kind=NodeKind.ENVIRONMENT, ids=ids, depth=run.depth)
    return replace(run.made_from, parent=parent, depth=run.depth)


def _common(run: _Run, ids: tuple[int, ...], start: int) -> int:
    """Return how many tokens of `run` equal `ids` from `start` on."""
    length = min(run.length, len(ids) - start)
    for offset in range(length):
        if run.source[run.start + offset] != ids[start + offset]:
            return offset
    return length
