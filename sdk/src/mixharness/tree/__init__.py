"""From a rollout's model calls to what is trained: call graph, pruning, token tree, audit.

The call graph (who continues whom) and the token tree (which tokens share a prefix) are two
structures and stay so. Nothing here talks to a harness or an engine.
"""

from mixharness.tree.audit import HarnessAudit, audit
from mixharness.tree.graph import CallGraph, build_graph
from mixharness.tree.prune import DEFAULT_PRUNING, Pruned, Pruning, prune
from mixharness.tree.tokens import build_tree, merge_trees, prompt_ids

__all__ = [
    "DEFAULT_PRUNING",
    "CallGraph",
    "HarnessAudit",
    "Pruned",
    "Pruning",
    "audit",
    "build_graph",
    "build_tree",
    "merge_trees",
    "prompt_ids",
    "prune",
]
