"""One rollout drawn: its token tree as SVG, and the text of every node. Charts are not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from tokenizers import Tokenizer

from mixharness.tree.prune import DEFAULT_PRUNING, Pruning, prune
from mixharness.tree.tokens import build_tree
from mixharness.types import ModelCall, NodeKind, Rollout, TokenNode, TokenTree
from mixharness.viewer.text import decode, sampled_html, text_html

_LANE, _BOX, _GAP, _EDGE = 58, 30, 22, 16
_LEGEND = (
    ("environment", "environment"),
    ("trained", "sampled, trained"),
    ("untrained", "sampled, not trained"),
    ("replayed", "replayed from another branch"),
)
_LONG = 400
"""Environment texts with more characters than this are folded."""


@dataclass(frozen=True, slots=True)
class _Drawing:
    """What the parts of one rollout's drawing share."""

    anchor: str
    tree: TokenTree
    calls: dict[str, ModelCall]
    tokenizer: Tokenizer | None


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    width: float
    lane: int


def rollout_view(
    rollout: Rollout, tokenizer: Tokenizer | None, pruning: Pruning = DEFAULT_PRUNING
) -> str:
    """Return the HTML of one rollout: facts, token tree, conversation and the other branches.

    Args:
        rollout: any rollout, failed ones too.
        tokenizer: None shows token ids instead of text.
        pruning: the run's own.
    """
    tree = build_tree(rollout.calls, prune(rollout.calls, pruning))
    anchor = "".join(char if char.isalnum() else "-" for char in rollout.id)
    drawing = _Drawing(anchor, tree, {call.id: call for call in rollout.calls}, tokenizer)
    path = _main_path(drawing)
    others = [index for index in range(len(tree.nodes)) if index not in path]
    legend = "".join(f'<span><i class="{name}"></i>{text}</span>' for name, text in _LEGEND)
    parts = [
        f"<h3>{escape(rollout.key.harness)} · {escape(rollout.key.task_id)}</h3>",
        f'<p class="note">{escape(_facts(rollout, tree))}</p>',
        f'<div class="legend">{legend}</div>',
        f'<div class="tree scroll">{_svg(drawing)}</div>',
        '<p class="note">Width grows with the root of the number of tokens. Click a node to read '
        "it. In sampled text, shade is surprise: the darker, the less likely.</p>",
        _folded("Conversation, as the policy read and wrote it", drawing, path),
        _folded("Other branches", drawing, others),
    ]
    return f'<div class="card">{"".join(parts)}</div>'


def _folded(title: str, drawing: _Drawing, nodes: Sequence[int]) -> str:
    if not nodes:
        return ""
    blocks = "".join(_block(drawing, index) for index in nodes)
    count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    return (
        f"<details open><summary>{title} ({count})</summary>"
        f'<div class="blocks">{blocks}</div></details>'
    )


def _facts(rollout: Rollout, tree: TokenTree) -> str:
    sampled = sum(len(call.sampled_ids) for call in rollout.calls)
    verdict = f"score {rollout.score.value:.2f}" if rollout.score else "no score"
    facts = [
        verdict,
        f"{len(rollout.calls)} calls",
        f"{tree.trained_tokens:,} of {sampled:,} sampled tokens trained",
        f"{rollout.wall_s:.1f} s",
        f"weights {rollout.policy_version}",
        f"rollout {rollout.id}",
    ]
    if rollout.failure:
        facts.insert(1, f"failure {rollout.failure.kind.value}: {rollout.failure.detail}")
    return " · ".join(facts)


def _main_path(drawing: _Drawing) -> list[int]:
    """Return the nodes from the root to the last trained answer (or the last one at all)."""
    nodes = drawing.tree.nodes
    sampled = [index for index, node in enumerate(nodes) if node.kind is NodeKind.SAMPLED]
    trained = [index for index in sampled if nodes[index].trained]
    order = {index: drawing.calls[nodes[index].call_id].index for index in sampled}
    index = max(trained or sampled, key=order.__getitem__, default=-1)
    path: list[int] = []
    while index >= 0:
        path.append(index)
        index = nodes[index].parent
    return path[::-1]


def _svg(drawing: _Drawing) -> str:
    boxes = _layout(drawing.tree)
    links = [
        _link(boxes[node.parent], boxes[index])
        for index, node in enumerate(drawing.tree.nodes)
        if node.parent >= 0
    ]
    shapes = [_shape(drawing, index, box) for index, box in enumerate(boxes)]
    width = max((box.x + box.width for box in boxes), default=0) + _EDGE
    height = (max((box.lane for box in boxes), default=0) + 1) * _LANE + _EDGE
    body = "".join(links + shapes)
    return f'<svg width="{width:.0f}" height="{height}" role="img">{body}</svg>'


def _layout(tree: TokenTree) -> list[_Box]:
    """Put the first child behind its parent and every other one on a lane of its own."""
    boxes: list[_Box] = []
    lanes = 0
    continued: set[int] = set()
    for node in tree.nodes:
        width = min(190.0, max(36.0, 9.0 * len(node.ids) ** 0.5))
        parent = boxes[node.parent] if node.parent >= 0 else _Box(_EDGE - _GAP, 0, 0)
        if node.parent in continued:
            lanes += 1
            lane = lanes
        else:
            lane = parent.lane
            continued.add(node.parent)
        boxes.append(_Box(parent.x + parent.width + _GAP, width, lane))
    return boxes


def _link(parent: _Box, child: _Box) -> str:
    x0, y0 = parent.x + parent.width, parent.lane * _LANE + _EDGE + _BOX / 2
    x1, y1 = child.x, child.lane * _LANE + _EDGE + _BOX / 2
    middle = (x0 + x1) / 2
    curve = f"M{x0:.1f},{y0} C{middle:.1f},{y0} {middle:.1f},{y1} {x1:.1f},{y1}"
    return f'<path class="link" d="{curve}"/>'


def _shape(drawing: _Drawing, index: int, box: _Box) -> str:
    node = drawing.tree.nodes[index]
    y, center = box.lane * _LANE + _EDGE, box.x + box.width / 2
    snippet = decode(node.ids[:60], drawing.tokenizer)[:200]
    tip = escape(f"{_describe(drawing, node)}\n{snippet}")
    dark = " on-dark" if node.trained else ""
    call = drawing.calls.get(node.call_id)
    caption = f"call {call.index} {node.reason}" if call else ""
    return (
        f'<a href="#{drawing.anchor}-{index}"><title>{tip}</title>'
        f'<rect class="{_color(node)}" x="{box.x:.1f}" y="{y}" width="{box.width:.1f}" '
        f'height="{_BOX}"/>'
        f'<text class="count{dark}" x="{center:.1f}" y="{y + 20}" text-anchor="middle">'
        f"{len(node.ids):,}</text>"
        f'<text class="caption" x="{box.x:.1f}" y="{y + _BOX + 13}">{escape(caption)}</text></a>'
    )


def _block(drawing: _Drawing, index: int) -> str:
    node = drawing.tree.nodes[index]
    head = f'<div class="head">{_describe(drawing, node, bold=True)}</div>'
    if node.kind is NodeKind.SAMPLED:
        body = f"<pre>{sampled_html(node.ids, node.logprobs, drawing.tokenizer)}</pre>"
    else:
        body = _environment_body(node.ids, drawing.tokenizer)
    name = f"{drawing.anchor}-{index}"
    return f'<div class="block is-{_color(node)}" id="{name}">{head}{body}</div>'


def _environment_body(ids: Sequence[int], tokenizer: Tokenizer | None) -> str:
    text = decode(ids, tokenizer)
    body = f"<pre>{text_html(text)}</pre>"
    if len(text) <= _LONG:
        return body
    start = " ".join(text[:220].split())
    return f"<details><summary><code>{text_html(start)} …</code></summary>{body}</details>"


def _describe(drawing: _Drawing, node: TokenNode, *, bold: bool = False) -> str:
    mark = ("<b>", "</b>") if bold else ("", "")
    tokens = f"{len(node.ids):,} token{'s' if len(node.ids) != 1 else ''}"
    if node.kind is not NodeKind.SAMPLED:
        return f"{mark[0]}{node.kind.value}{mark[1]} · {tokens} from position {node.depth:,}"
    call = drawing.calls[node.call_id]
    state = f"not trained: {node.reason}"
    if node.trained:
        state = "trained" if node.credit == 1 else f"trained with {node.credit:g} of the advantage"
    facts = [
        f"{mark[0]}call {call.index}, {call.role.value}{mark[1]}",
        state,
        tokens,
        f"mean log p {fmean(node.logprobs):.3f}",
        f"T {node.temperature:g}",
        f"finish {call.finish_reason}",
    ]
    if call.fork:
        facts.append(f"fork: {call.fork} {call.fork_span}")
    return " · ".join(facts if not bold else [facts[0], *map(escape, facts[1:])])


def _color(node: TokenNode) -> str:
    if node.kind is NodeKind.SAMPLED:
        return "trained" if node.trained else "untrained"
    return node.kind.value
