"""Lays token trees out as rows for one forward pass, with a flat list of edges.

Which token may attend to which lives in attention.py; nothing here runs a model.

Shapes: N tokens of a row, E edges of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from mixharness.tree.tokens import merge_trees
from mixharness.types import TokenNode, TokenTree
from mixharness_trainer.attention import Layout

ANY_VERSION = -1
"""Version of a sampled token whose call recorded no version span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rollout of the optimizer batch with what its edges carry."""

    rollout_id: str
    tree: TokenTree
    advantages: Sequence[float]
    """One per trained token, in tree order; a branch's credit is not yet in it."""
    harness: str = ""
    """Label of the harness it ran in."""
    rollout: int = 0
    """Index in the optimizer batch."""
    weight: float = 1.0
    """Normalization of one token (loss.py)."""
    returns: Sequence[float] = ()
    """What a critic should say at each trained token, in tree order; empty without a critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Tokens of one forward pass. A tree's nodes stand in preorder, so a subtree is a range."""

    ids_N: Tensor
    depth_N: Tensor
    """Tokens from the root: the position id."""
    end_N: Tensor
    """Where the token's subtree ends: q attends to k exactly when k <= q < end[k]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Rows and the edges read from them. A rollout is never spread over two batches."""

    rows: tuple[Row, ...]
    position_E: Tensor
    """Predicting position, counted over all rows in order."""
    target_E: Tensor
    rollout_E: Tensor
    token_E: Tensor
    """Index among the trained tokens of its rollout, in tree order."""
    temperature_E: Tensor
    logp_rollout_E: Tensor
    version_E: Tensor
    advantage_E: Tensor
    weight_E: Tensor
    return_E: Tensor
    """0 without a critic."""

    @property
    def num_tokens(self) -> int:
        """Return the tokens that the forward pass reads."""
        return sum(len(row.ids_N) for row in self.rows)

    @property
    def num_edges(self) -> int:
        """Return the trained tokens."""
        return len(self.target_E)

    def to(self, device: torch.device) -> PackedBatch:
        """Return the batch with its tensors on `device`."""
        rows = tuple(
            Row(**{f.name: getattr(row, f.name).to(device) for f in fields(Row)})
            for row in self.rows
        )
        columns = {name: getattr(self, name).to(device) for name in _EDGE_TYPES}
        return PackedBatch(rows=rows, **columns)


def pack(
    groups: Iterable[Sequence[Member]], *, max_tokens: int, layout: Layout = Layout.TREE
) -> list[PackedBatch]:
    """Pack rollouts into batches of at most `max_tokens` (TOKENS_AND_TREES section 6).

    Under `Layout.TREE` a group's trees are merged and each batch is one row; under
    `Layout.PATHS` each path from the root to a last trained token is a row of its own. Only
    trained tokens and their ancestors are laid out. A rollout larger than `max_tokens` gets a
    batch alone: it cannot be cut without weighing its parts apart.

    Raises:
        ValueError: a trained run has no token before it, or a temperature is not positive.
    """
    bins = [_Bin()]
    for members in groups:
        forest = _Forest(members, layout)
        for member in members:
            wanted = forest.needed[member.rollout_id]
            if not wanted:
                continue
            if bins[-1].num_tokens and bins[-1].grown(forest, wanted) > max_tokens:
                bins.append(_Bin())
            bins[-1].add(forest, wanted)
    return [full.batch(layout) for full in bins if full.num_tokens]


class _Forest:
    """A group's trees and the nodes each rollout needs of them."""

    def __init__(self, members: Sequence[Member], layout: Layout) -> None:
        self.members = {member.rollout_id: member for member in members}
        self.offsets = {m.rollout_id: _call_offsets(m.tree) for m in members}
        if layout is Layout.TREE:
            self.nodes = merge_trees([m.tree for m in members]).nodes
        else:
            self.nodes = tuple(_unfold(members))
        self.needed: dict[str, set[int]] = {member.rollout_id: set() for member in members}
        for index, node in enumerate(self.nodes):
            if node.trained:
                self._need(index, self.needed[node.rollout_id])

    def _need(self, index: int, needed: set[int]) -> None:
        while index >= 0 and index not in needed:
            needed.add(index)
            index = self.nodes[index].parent

    def size(self, chosen: set[int]) -> int:
        return sum(len(self.nodes[index].ids) for index in chosen)


def _call_offsets(tree: TokenTree) -> dict[str, int]:
    """Map a call to the index of its first token among the rollout's trained tokens."""
    offsets: dict[str, int] = {}
    total = 0
    for node in tree.nodes:
        if node.trained:
            offsets[node.call_id] = total
            total += len(node.ids)
    return offsets


def _unfold(members: Sequence[Member]) -> Iterator[TokenNode]:
    """Yield every path as a chain of its own; a repeated trained run trains on its first path."""
    total = 0
    for member in members:
        seen: set[int] = set()
        for path in _paths(member.tree):
            for place, index in enumerate(path):
                node = member.tree.nodes[index]
                yield replace(
                    node,
                    parent=total + place - 1 if place else -1,
                    trained=node.trained and index not in seen,
                )
            seen.update(path)
            total += len(path)


def _paths(tree: TokenTree) -> list[list[int]]:
    """Return root-to-leaf node indices; leaves are trained nodes with no trained descendant."""
    inner: set[int] = set()
    paths: list[list[int]] = []
    for index in reversed(range(len(tree.nodes))):
        if index in inner or not tree.nodes[index].trained:
            continue
        path = [index]
        while tree.nodes[path[-1]].parent >= 0:
            path.append(tree.nodes[path[-1]].parent)
        inner.update(path)
        paths.append(path[::-1])
    return paths[::-1]


@dataclass(slots=True)
class _Bin:
    """What goes into one batch: per group the nodes that are laid out."""

    parts: list[tuple[_Forest, set[int]]] = field(default_factory=list)
    num_tokens: int = 0

    def grown(self, forest: _Forest, wanted: set[int]) -> int:
        """Return the size with `wanted` added; what the group already placed costs nothing."""
        return self.num_tokens + forest.size(wanted - self._placed(forest))

    def add(self, forest: _Forest, wanted: set[int]) -> None:
        self.num_tokens = self.grown(forest, wanted)
        if not self._placed(forest):
            self.parts.append((forest, set()))
        self.parts[-1][1].update(wanted)

    def _placed(self, forest: _Forest) -> set[int]:
        return self.parts[-1][1] if self.parts and self.parts[-1][0] is forest else set()

    def batch(self, layout: Layout) -> PackedBatch:
        """Write the nodes down; a row ends with the batch, or with each path."""
        writer = _Writer()
        for forest, chosen in self.parts:
            children = _children(forest, chosen)
            for root in reversed(children[-1]):
                writer.write_tree(forest, children, root)
                if layout is Layout.PATHS:
                    writer.end_row()
        if layout is Layout.TREE:
            writer.end_row()
        edges = {
            name: torch.tensor(values, dtype=_EDGE_TYPES[name])
            for name, values in writer.edges.items()
        }
        return PackedBatch(rows=tuple(writer.rows), **edges)


_EDGE_TYPES = {
    "position_E": torch.int64,
    "target_E": torch.int64,
    "rollout_E": torch.int64,
    "token_E": torch.int64,
    "temperature_E": torch.float32,
    "logp_rollout_E": torch.float32,
    "version_E": torch.int64,
    "advantage_E": torch.float32,
    "weight_E": torch.float32,
    "return_E": torch.float32,
}


class _Writer:
    """Lays nodes out in preorder and notes the edges of the trained ones."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.row_start = 0
        self.ids: list[int] = []
        self.depth: list[int] = []
        self.end: list[int] = []
        self.edges: dict[str, list[float]] = {name: [] for name in _EDGE_TYPES}

    def write_tree(self, forest: _Forest, children: dict[int, list[int]], root: int) -> None:
        """Append the tree under `root`."""
        last = {-1: -1}  # node to the position of its last token
        written: list[tuple[int, int]] = []
        for index in _preorder(children, root):
            node = forest.nodes[index]
            before = last[node.parent]
            if node.trained:
                self._note_edges(forest, node, before)
            depth = self.depth[before] + 1 if before >= 0 else 0
            written.append((index, len(self.ids)))
            self.ids += node.ids
            self.depth += range(depth, depth + len(node.ids))
            last[index] = len(self.ids) - 1 if node.ids else before
        self._note_ends(forest, written)

    def _note_ends(self, forest: _Forest, written: list[tuple[int, int]]) -> None:
        ends = {index: start + len(forest.nodes[index].ids) for index, start in written}
        for index, _ in reversed(written):
            parent = forest.nodes[index].parent
            ends[parent] = max(ends.get(parent, 0), ends[index])
        for index, _ in written:
            self.end += [ends[index] - self.row_start] * len(forest.nodes[index].ids)

    def _note_edges(self, forest: _Forest, node: TokenNode, before: int) -> None:
        where = f"rollout {node.rollout_id}, call {node.call_id}"
        if before < 0:
            raise ValueError(f"{where}: a sampled run needs a token before it to predict it from")
        if node.temperature <= 0:
            raise ValueError(f"{where}: trained at temperature {node.temperature}; must be > 0")
        member = forest.members[node.rollout_id]
        token = forest.offsets[node.rollout_id][node.call_id]
        count, start = len(node.ids), len(self.ids)
        columns: dict[str, Iterable[float]] = {
            "position_E": [before, *range(start, start + count - 1)],
            "target_E": node.ids,
            "rollout_E": [member.rollout] * count,
            "token_E": range(token, token + count),
            "temperature_E": [node.temperature] * count,
            "logp_rollout_E": node.logprobs,
            "version_E": _versions(node),
            "advantage_E": (node.credit * a for a in member.advantages[token : token + count]),
            "weight_E": [member.weight] * count,
            "return_E": member.returns[token : token + count] or [0.0] * count,
        }
        for name, values in columns.items():
            self.edges[name] += values

    def end_row(self) -> None:
        """Close the row: the tokens written since the last one."""
        tokens = slice(self.row_start, len(self.ids))
        columns = (torch.tensor(values[tokens]) for values in (self.ids, self.depth, self.end))
        self.rows.append(Row(**dict(zip(("ids_N", "depth_N", "end_N"), columns, strict=True))))
        self.row_start = len(self.ids)


def _children(forest: _Forest, chosen: set[int]) -> dict[int, list[int]]:
    """Map a chosen node (and -1, above the roots) to its chosen children, last one first."""
    children: dict[int, list[int]] = {index: [] for index in (-1, *chosen)}
    for index in sorted(chosen, reverse=True):
        children[forest.nodes[index].parent].append(index)
    return children


def _preorder(children: dict[int, list[int]], root: int) -> Iterator[int]:
    stack = [root]
    while stack:
        index = stack.pop()
        yield index
        stack += children[index]


def _versions(node: TokenNode) -> list[int]:
    versions = [ANY_VERSION] * len(node.ids)
    for span in node.versions:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    return versions
