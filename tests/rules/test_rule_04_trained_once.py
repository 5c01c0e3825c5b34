"""Rule 4: each sampled token trains at most once, nothing else ever, and the rest has a reason."""

import pytest

from mixharness.tree import build_tree, prune
from mixharness.tree.audit import audit
from mixharness_trainer.attention import Layout
from mixharness_trainer.packing import Member, pack

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("layout", list(Layout))
async def test_edges_are_the_kept_tokens_once_and_the_rest_is_explained(bench, layout):
    engine = bench.engine(bench.call("ls"), "In vain.", "It is Ada.", "Done.")
    rollout = await bench.run(engine, harness=bench.rewriter(), label="rewriter")
    first, vain, second, last = rollout.calls
    pruned = prune(rollout.calls)
    tree = build_tree(rollout.calls, pruned)
    kept = [i for node in tree.nodes if node.call_id in pruned.kept for i in node.ids]
    assert sorted(kept) == sorted(first.sampled_ids + second.sampled_ids + last.sampled_ids)

    places = list(range(len(kept)))
    member = Member(rollout_id=rollout.id, tree=tree, advantages=places)
    edges = [
        edge
        for batch in pack([[member]], max_tokens=10_000, layout=layout)
        for edge in zip(batch.token_E.tolist(), batch.target_E.tolist(), strict=True)
    ]
    assert sorted(edges) == list(zip(places, kept, strict=True))

    figures = audit([rollout])["rewriter"]
    lost = len(vain.sampled_ids) / (len(kept) + len(vain.sampled_ids))
    assert figures.remainder == pytest.approx({"superseded": lost})
    assert figures.unexplained_loss == 0.0
