"""The nouns that pass between rooms: frozen values, no I/O, no torch.

Words (TOKENS_AND_TREES): a *call* is one model request and its answer. The call graph says which
call continues which; the token tree says which tokens share a prefix. They are two structures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rollout may use. Zero or None never means "no limit" here; leave the default.

    They are nested, so that the inner one is hit first and says whose fault it was: the timeout of
    one command (the harness's own) < `agent_s` < `wall_s`. Settling and grading come after, each
    with a limit of its own. The defaults suit tasks of minutes; long ones (ClawLoop) are given
    `agent_s = 86_000`, `wall_s = 86_400` (24 h) and `max_turns = 300`.
    """

    agent_s: float = 300.0
    """Seconds on the agent clock, which stands still while a model call is held or sampled."""
    wall_s: float = 900.0
    """Seconds by the wall clock; running out of these is the infrastructure's fault."""
    max_turns: int = 50
    """Model calls of a rollout, counted at the proxy for every harness."""
    tokens: int = 1_000_000
    """Sampled tokens of a rollout, counted at the proxy."""
    memory_mb: int = 4096
    """Memory of a sandbox in MiB; in `local` and `bubblewrap`, private memory of each process."""
    cpus: float = 2.0
    """Processors a sandbox may keep busy, where the backend can limit it."""
    processes: int = 256
    """Processes of the sandbox's user."""
    file_mb: int = 256
    """Largest file a process in the sandbox may write, in MiB."""
    disk_mb: int = 1024
    """What a sandbox may write in all, in MiB; a workspace beyond it is not graded."""
    output_mb: int = 8
    """MiB kept of each of a command's two outputs; the beginning is dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A program that a task needs beside the agent, started inside its sandbox."""

    name: str
    command: tuple[str, ...]
    """Runs until the sandbox closes; its folder is the workspace."""
    health: tuple[str, ...]
    """A command that exits with 0 as soon as the service can be used."""
    mcp_url: str = ""
    """Address inside the sandbox of the MCP server that it is; harnesses offer its tools."""
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 30.0
    """Longest time until it is healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do in a workspace. `answer` is for verifiers only and never enters a sandbox."""

    id: str
    prompt: str
    verifier: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Workspace files: relative path to text."""
    folder: Path | None = None
    """Host folder that is copied into the workspace as it is, before `files`."""
    workspace: str = ""
    """Absolute path at which programs see the workspace; empty where the sandbox puts it."""
    image: str = ""
    """Container image of the sandbox; empty for the backend's own."""
    services: tuple[Service, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    """Overrides of the run file's `Limits`, by name."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """The unit of comparison: no baseline is ever taken across two of these (rule 5)."""

    task_id: str
    harness: str
    """The harness label of the run file, by default the harness name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A verifier's verdict: `value` is finite and lies in [0, 1]."""

    value: float
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 <= self.value <= 1.0:  # also refuses NaN
            raise ValueError(f"a score must lie in [0, 1], got {self.value!r}")


class FailureClass(StrEnum):
    """Who is to blame (ARCHITECTURE section 7); the class decides what happens to the rollout."""

    INFRA = "infra"
    """Retried, then excluded from loss and baseline."""
    POLICY = "policy"
    """Kept, scored by `on_limit`, trained."""
    INTEGRITY = "integrity"
    """Score 0, kept, reported loudly."""
    RUN = "run"
    """Dropped and counted."""


class FailureKind(StrEnum):
    """What happened; `failure_class` says whose fault that is."""

    SANDBOX_START = "sandbox_start"
    HARNESS_START = "harness_start"
    CONNECTION = "connection"
    ENGINE_ERROR = "engine_error"
    WALL_CLOCK = "wall_clock"
    JUDGE_UNAVAILABLE = "judge_unavailable"
    SETTLE_TIMEOUT = "settle_timeout"
    AGENT_TIMEOUT = "agent_timeout"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    NONZERO_EXIT = "nonzero_exit"
    INVALID_TOOL_LOOP = "invalid_tool_loop"
    NO_OUTPUT = "no_output"
    RESOURCE_LIMIT = "resource_limit"
    GRADER_BROKEN = "grader_broken"
    GRADER_TAMPERING = "grader_tampering"
    FOREIGN_CALL = "foreign_call"
    ENDPOINT_REDIRECT = "endpoint_redirect"
    CANCELLED = "cancelled"
    STALE = "stale"
    EXCESSIVE_FORKS = "excessive_forks"

    @property
    def failure_class(self) -> FailureClass:
        """Return the class of ARCHITECTURE section 7 this kind belongs to."""
        return _CLASS_OF[self]


_INFRA = (
    "sandbox_start harness_start connection engine_error wall_clock judge_unavailable "
    "settle_timeout"
)
_INTEGRITY = "grader_tampering foreign_call endpoint_redirect"
_RUN = "cancelled stale excessive_forks"
_CLASS_OF: dict[FailureKind, FailureClass] = dict.fromkeys(FailureKind, FailureClass.POLICY)
for _names, _class in (
    (_INFRA, FailureClass.INFRA),
    (_INTEGRITY, FailureClass.INTEGRITY),
    (_RUN, FailureClass.RUN),
):
    _CLASS_OF.update({FailureKind(name): _class for name in _names.split()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a rollout went wrong. A failure is data, never a reward (rule 6)."""

    kind: FailureKind
    detail: str = ""
    attempts: int = 1

    @property
    def failure_class(self) -> FailureClass:
        """Return the class that decides what happens to the rollout."""
        return self.kind.failure_class


class CallRole(StrEnum):
    """What a model call was for; only `main` is trained by default."""

    MAIN = "main"
    COMPACTION = "compaction"
    SUBAGENT = "subagent"
    AUXILIARY = "auxiliary"


class Delivery(StrEnum):
    """What became of an answer after it was sampled (TOKENS_AND_TREES 1.8)."""

    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    """The client went away; the ids are kept and never trained."""
    UNKNOWN = "unknown"
    """The runner died in between: delivered if and only if continued."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Sampled tokens [start, end) of a call came from weights number `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """The record of one model request and its answer (TOKENS_AND_TREES section 1, "Record").

    The prompt is the first `parent_len` tokens of `parent_call`'s prompt + sampled ids, followed
    by `environment_ids`. `parent_call` (token sharing) and `continues` (call graph) differ when a
    harness rewrote its history: the call still continues, but shares fewer tokens.
    """

    id: str
    rollout_id: str
    index: int
    """Order of arrival within the rollout, from 0."""
    agent: str = ""
    """Identity of the agent inside the harness; empty for the main one."""
    role: CallRole = CallRole.MAIN
    parent_call: str | None = None
    parent_len: int = 0
    """Counted from the root; never falls inside sampled ids."""
    environment_ids: tuple[int, ...]
    replayed: tuple[tuple[int, int], ...] = ()
    """[start, end) ranges of `environment_ids` that were sampled on another branch."""
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probabilities under softmax(logits / temperature), one per sampled id."""
    versions: tuple[VersionSpan, ...] = ()
    temperature: float = 1.0
    finish_reason: str = "stop"
    """`stop`, `length` or `cancelled`."""
    parse_status: str = "ok"
    """`ok`, `invalid` (a malformed tool call was shown as text) or `repaired`."""
    continues: tuple[str, ...] = ()
    """Calls whose message this request is the first to hold, oldest first."""
    fork: str = ""
    """Why the known history could not be continued; empty when it was (or there was none)."""
    fork_span: str = ""
    """The first differing span, as `known -> received`."""
    delivery: Delivery = Delivery.PENDING
    duplicates: int = 0
    """Times the same request came again and was joined to or served from this call."""
    started_s: float = 0.0
    """Seconds since the rollout began."""
    duration_s: float = 0.0
    held_s: float = 0.0
    """Seconds the request waited at the gate for a weight update."""
    rules: tuple[str, ...] = ()
    """Render rules that were on, as `name@version`."""
    renderer_hash: str = ""
    """Hash over renderer, template and tokenizer."""
    checksum: str = ""
    """Chained: over the parent's checksum and this call's ids."""

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.sampled_ids):  # rule 1: never padded
            raise ValueError(
                f"call {self.id}: {len(self.sampled_ids)} sampled ids but "
                f"{len(self.logprobs)} log-probs"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessExit:
    """How the harness program ended. The exit code is a hint, never a reward."""

    exit_code: int | None
    """None when it was killed."""
    output: str = ""
    """The tail of what it printed, for people."""
    final_message: str = ""
    reason: str = "completed"
    """`completed`, `max_turns`, `context_overflow`, `error` or `killed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything recorded of one attempt at one task in one harness."""

    id: str
    key: GroupKey
    calls: tuple[ModelCall, ...]
    score: Score | None = None
    """None exactly when a failure without a score was recorded."""
    failure: Failure | None = None
    exit: HarnessExit | None = None
    agent_s: float = 0.0
    wall_s: float = 0.0
    late_exit: bool = False
    """The program hung after its result and was killed; no failure."""
    policy_version: int = 0
    """Version of the weights when the rollout began."""
    program_version: str = ""
    """Of the harness's program; empty for a harness without one."""
    refill: int = 0
    """Round in which it was drawn in place of excluded rollouts; 0: from the beginning."""

    @property
    def usable(self) -> bool:
        """Say whether loss and baseline may see this rollout (rule 6)."""
        excluded = self.failure is not None and self.failure.failure_class in (
            FailureClass.INFRA,
            FailureClass.RUN,
        )
        return self.score is not None and not excluded

    @property
    def reward(self) -> float:
        """Return the score's value.

        Raises:
            ValueError: the rollout has no score; a failure is never a reward.
        """
        if self.score is None:
            raise ValueError(f"rollout {self.id} has no score")
        return self.score.value


class NodeKind(StrEnum):
    """What a run of tokens is."""

    ENVIRONMENT = "environment"
    SAMPLED = "sampled"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNode:
    """A run of tokens of one kind. Sampled nodes are whole calls and never split."""

    parent: int
    """Index of the parent node; -1 for the virtual root."""
    kind: NodeKind
    ids: tuple[int, ...]
    depth: int
    """Tokens from the root to the first token of this node."""
    rollout_id: str = ""
    """Set on sampled nodes; environment may be shared by a group."""
    call_id: str = ""
    logprobs: tuple[float, ...] = ()
    versions: tuple[VersionSpan, ...] = ()
    temperature: float = 1.0
    trained: bool = False
    """Only ever true on a sampled node (rule 4)."""
    credit: float = 1.0
    """Share of the rollout's advantage that its tokens are trained with, where it is trained."""
    reason: str = ""
    """Why a sampled node is not trained."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Token runs joined under a virtual root; parents precede their children."""

    nodes: tuple[TokenNode, ...]

    @property
    def trained_tokens(self) -> int:
        """Return T_i for one rollout's tree: the sampled tokens that reach the loss."""
        return sum(len(node.ids) for node in self.nodes if node.trained)


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """Usable rollouts of exactly one (task, harness) pair, each with its own token tree.

    Raises:
        ValueError: at construction, when a rollout of another pair or an unusable one is put in.
    """

    key: GroupKey
    rollouts: tuple[Rollout, ...]
    trees: tuple[TokenTree, ...]

    def __post_init__(self) -> None:
        strangers = sorted({str(r.key) for r in self.rollouts if r.key != self.key})
        if strangers:
            raise ValueError(f"a group has one GroupKey; {self.key} got {', '.join(strangers)}")
        unusable = [r.id for r in self.rollouts if not r.usable]
        if unusable:
            raise ValueError(f"excluded rollouts may not enter a baseline: {', '.join(unusable)}")
        if len(self.rollouts) != len(self.trees):
            raise ValueError("a group needs one token tree per rollout")

    @property
    def rewards(self) -> tuple[float, ...]:
        """Return one reward per rollout, in order."""
        return tuple(r.reward for r in self.rollouts)
