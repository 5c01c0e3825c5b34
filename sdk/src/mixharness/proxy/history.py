"""What a rollout's requests have in common: finds the longest known history (1.4, 1.5).

It knows messages and calls. Rendering new text and talking HTTP are done elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.proxy.fingerprint import Fingerprinter, chain, first_difference, tool_defaults
from mixharness.types import ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Prints:
    """A request's fingerprints."""

    root: bytes
    messages: tuple[bytes, ...]
    links: tuple[bytes, ...]
    """links[i] covers the tools and the first i messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """How a request continues what is known."""

    prints: Prints
    parent: ModelCall | None = None
    """The call that owns the last shared token."""
    whole: bool = False
    """The parent's sampled ids are shared too; otherwise only its prompt is."""
    start: int = 0
    """First message that the parent's tokens do not cover."""
    spliced: dict[int, ModelCall]
    """Message index to the call, sampled on another branch, whose ids stand for it."""
    held: frozenset[str]
    """Every call whose message this request holds, rewritten or not."""
    continues: tuple[str, ...] = ()
    fork: str = ""
    fork_span: str = ""

    @property
    def parent_len(self) -> int:
        """Return the number of shared tokens, counted from the root."""
        if self.parent is None:
            return 0
        return prompt_len(self.parent) + (len(self.parent.sampled_ids) if self.whole else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A sampled call and the message its harness was shown."""

    call: ModelCall
    message: ChatMessage
    print: bytes
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Latest:
    """An agent's latest conversation, its answer included: what a fork is compared with."""

    root: bytes
    prints: tuple[bytes, ...]
    messages: tuple[ChatMessage, ...]
    calls: frozenset[str]


class History:
    """All sampled calls of one rollout, found again by content and by minted id."""

    def __init__(self, fingerprinter: Fingerprinter) -> None:
        self._fingerprinter = fingerprinter
        self._known: dict[str, _Known] = {}
        self._at_prompt: dict[bytes, list[_Known]] = defaultdict(list)
        self._by_answer: dict[bytes, list[_Known]] = defaultdict(list)
        self._by_tool_id: dict[str, _Known] = {}
        self._latest: dict[str, _Latest] = {}
        self.continued: set[str] = set()
        """Calls whose message some later request holds: they were acknowledged."""

    def prints(self, request: ChatRequest) -> Prints:
        """Return a request's fingerprints; only messages not seen before cost work."""
        root = self._fingerprinter.root(request.tools)
        messages = self._fingerprinter.messages(root, request)
        return Prints(root=root, messages=tuple(messages), links=tuple(chain(root, messages)))

    def resolve(self, request: ChatRequest, agent: str, prints: Prints) -> Resolved:
        """Find the longest known history of a request.

        The deepest assistant message that was asked for at the very same prompt decides. Is it
        what was sampled there, its ids are shared; otherwise only that prompt is.
        """
        turns = [i for i, m in enumerate(request.messages) if m.role == "assistant"]
        shared = next((i for i in reversed(turns) if prints.links[i] in self._at_prompt), None)
        parent: _Known | None = None
        whole, start = False, 0
        if shared is not None:
            parent = self._pick(request.messages[shared], prints, shared)
            whole = parent.print == prints.messages[shared]
            start = shared + 1 if whole else shared
        held = parent.held | {parent.call.id} if parent else frozenset()
        spliced, new = self._splice(request, agent, prints, [i for i in turns if i >= start], held)
        before = frozenset[str]().union(*(k.held for k in [*([parent] if parent else []), *new]))
        continued = held | {known.call.id for known in new}
        bridged = whole and turns[-1] < start
        fork, span = ("", "") if bridged else self._fork(request, agent, prints)
        return Resolved(
            prints=prints,
            parent=parent.call if parent else None,
            whole=whole,
            start=start,
            spliced=spliced,
            held=continued,
            continues=self._in_order(continued - before),
            fork=fork,
            fork_span=span,
        )

    def acknowledge(self, resolved: Resolved) -> None:
        """Note that a request holding these calls' messages was taken on."""
        self.continued |= resolved.held

    def add(
        self, call: ModelCall, resolved: Resolved, request: ChatRequest, shown: ChatMessage
    ) -> None:
        """Remember a sampled call and the message its harness is shown."""
        asked = ChatRequest(messages=(shown,), tools=request.tools)
        answer = self._fingerprinter.messages(resolved.prints.root, asked)[0]
        known = _Known(call=call, message=shown, print=answer, held=resolved.held)
        self._known[call.id] = known
        self._at_prompt[resolved.prints.links[-1]].append(known)
        self._by_answer[answer].append(known)
        self._by_tool_id.update({tool_call.id: known for tool_call in shown.tool_calls})
        self._latest[call.agent] = _Latest(
            resolved.prints.root,
            (*resolved.prints.messages, answer),
            (*request.messages, shown),
            resolved.held | {call.id},
        )

    def shared_ids(self, resolved: Resolved) -> list[int]:
        """Return the ids of the shared history, put together from the calls that own them."""
        parts: list[tuple[int, ...]] = []
        call, length = resolved.parent, resolved.parent_len
        while call is not None:
            own = call.environment_ids + call.sampled_ids
            parts.append(own[: length - call.parent_len])
            length = call.parent_len
            call = self._known[call.parent_call].call if call.parent_call else None
        ids: list[int] = []
        for part in reversed(parts):
            ids += part
        return ids

    def _pick(self, message: ChatMessage, prints: Prints, index: int) -> _Known:
        """Choose among calls sampled at one prompt: a minted id nominates, else the latest."""
        siblings = self._at_prompt[prints.links[index]]
        nominated = self._nominated(message)
        if nominated in siblings:
            return nominated
        equal = [known for known in siblings if known.print == prints.messages[index]]
        return (equal or siblings)[-1]

    def _splice(
        self,
        request: ChatRequest,
        agent: str,
        prints: Prints,
        turns: Sequence[int],
        held: frozenset[str],
    ) -> tuple[dict[int, ModelCall], list[_Known]]:
        """Find assistant messages that were sampled on another branch, rewritten ones too."""
        spliced: dict[int, ModelCall] = {}
        found: list[_Known] = []
        taken = set(held)
        latest = self._latest[agent].calls if agent in self._latest else frozenset[str]()
        for index in turns:
            answer = prints.messages[index]
            equal = [k for k in self._by_answer.get(answer, ()) if k.call.id not in taken]
            # Of equal answers the agent's own come first, in the order they were given.
            equal.sort(key=lambda known: known.call.id not in latest)
            known = self._nominated(request.messages[index]) or (equal[0] if equal else None)
            if known is None:
                continue
            found.append(known)
            taken.add(known.call.id)
            if known.print == answer:
                spliced[index] = known.call
        return spliced, found

    def _nominated(self, message: ChatMessage) -> _Known | None:
        ids = (call.id for call in message.tool_calls)
        return next((self._by_tool_id[i] for i in ids if i in self._by_tool_id), None)

    def _in_order(self, ids: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(ids, key=lambda call_id: self._known[call_id].call.index))

    def _fork(self, request: ChatRequest, agent: str, prints: Prints) -> tuple[str, str]:
        """Say why the agent's known history was not continued, and where it first differs."""
        latest = self._latest.get(agent)
        if latest is None or prints.links[-1] in self._at_prompt:
            return "", ""
        if latest.root != prints.root:
            return "tools_changed", ""
        pairs = zip(latest.prints, prints.messages, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            cut = len(prints.messages) < len(latest.prints)
            return ("history_cut" if cut else "unknown_assistant"), ""
        known, received = latest.messages[at], request.messages[at]
        defaults = tool_defaults(request.tools)
        was, now = (self._fingerprinter.canonical(m, defaults) for m in (known, received))
        return f"{known.role}_changed", first_difference(was.decode(), now.decode())


def prompt_len(call: ModelCall) -> int:
    """Return the length of a call's prompt in tokens."""
    return call.parent_len + len(call.environment_ids)
