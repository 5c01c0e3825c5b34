"""What a rollout's requests have in common: finds the longest known history (1.4, 1.5).

It knows messages and calls. Rendering new text and talking HTTP are done elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.proxy.dialects.seen import common
from mixharness.proxy.fingerprint import Fingerprinter, chain_of, first_difference, tool_defaults
from mixharness.proxy.resolved import NO_CALLS, Place, Prints, Resolved, SharedIds, prompt_len
from mixharness.proxy.rulebook import bare
from mixharness.types import ModelCall

if TYPE_CHECKING:
    from mixharness.proxy.admission import Plan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """A sampled call and the message its harness was shown."""

    call: ModelCall
    lane: str
    message: ChatMessage
    print: bytes
    held: frozenset[str]
    before: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latest:
    """A lane's latest request and its answer: what a fork is compared with."""

    prints: Prints
    messages: tuple[ChatMessage, ...]
    """As they were asked, without the answer."""
    answer: _Known

    @property
    def all_prints(self) -> tuple[bytes, ...]:
        return (*self.prints.messages, self.answer.print)

    @property
    def all_messages(self) -> tuple[ChatMessage, ...]:
        return (*self.messages, self.answer.message)


class History:
    """All sampled calls of one rollout, found again by content and by minted id."""

    def __init__(self, fingerprinter: Fingerprinter) -> None:
        self._fingerprinter = fingerprinter
        self._known: dict[str, _Known] = {}
        self._at_prompt: dict[bytes, list[_Known]] = defaultdict(list)
        self._after_turn: dict[bytes, Place] = {}
        """Turns inside of prompts: sampled on another branch, or by nobody."""
        self._by_answer: dict[bytes, list[_Known]] = defaultdict(list)
        self._by_bare: dict[bytes, list[_Known]] = defaultdict(list)
        self._by_tool_id: dict[str, _Known] = {}
        self._latest: dict[str, _Latest] = {}
        self._ids: dict[str, tuple[str, tuple[int, ...]]] = {}
        """Lane to its latest call and that call's prompt."""
        self.continued: set[str] = set()
        """Calls whose message some later request holds: they were acknowledged."""

    def prints(self, request: ChatRequest, lane: str) -> Prints:
        """Return a request's fingerprints; messages the lane has seen cost next to nothing."""
        root = self._fingerprinter.root(request.tools)
        latest, same = self._latest.get(lane), 0
        if latest is not None and latest.prints.root == root:
            same = common(latest.messages, request.messages)
        known = latest.prints.messages[:same] if latest else ()
        links = latest.prints.links[:same] if latest else ()
        last = latest.prints.links[same] if latest and same else root
        new = self._fingerprinter.messages(root, request.messages[same:], request.tools)
        return Prints(root=root, messages=(*known, *new), links=(*links, *chain_of(last, new)))

    def resolve(self, request: ChatRequest, lane: str, prints: Prints) -> Resolved:
        """Find the longest known history of a request.

        The deepest assistant message decides that was asked for at the very same prompt, or that
        stood in a prompt at the very same place. Asked for at the same prompt, is it what was
        sampled there, those ids are shared; otherwise only the prompt is.
        """
        turns = [i for i, m in enumerate(request.messages) if m.role == "assistant"]
        place, start, rewritten = self._shared(request, lane, prints, turns)
        later = [i for i in turns if i >= start]
        found = self._find(request, lane, prints, later, place.held)
        if rewritten is not None and start not in found and rewritten not in found.values():
            found[start] = rewritten
        places: dict[int, Place] = {}
        held, before = place.held, place.before
        for index in later:
            if index in found:
                held, before = held | {found[index].call.id}, before | found[index].held
            places[index] = Place(held=held, before=before)
        bridged = place.turn is not None and not later
        fork, span = ("", "") if bridged else self._fork(request, lane, prints, set(found))
        return Resolved(
            prints=prints,
            place=place,
            start=start,
            spliced={i: k.call for i, k in found.items() if k.print == prints.messages[i]},
            places=places,
            held=held,
            before=before,
            continues=self._in_order(held - before),
            fork=fork,
            fork_span=span,
        )

    def acknowledge(self, resolved: Resolved) -> None:
        """Note that a request holding these calls' messages was taken on."""
        self.continued |= resolved.held

    def add(self, call: ModelCall, plan: Plan, shown: ChatMessage) -> None:
        """Remember a sampled call and the message its harness is shown."""
        resolved, prints, request = plan.resolved, plan.resolved.prints, plan.request
        forms = (shown, bare(shown))
        answer, without = self._fingerprinter.messages(prints.root, forms, request.tools)
        known = _Known(
            call=call,
            lane=plan.lane,
            message=shown,
            print=answer,
            held=resolved.held,
            before=resolved.before,
        )
        self._known[call.id] = known
        self._at_prompt[prints.links[-1]].append(known)
        self._by_answer[answer].append(known)
        self._by_bare[without].append(known)
        self._by_tool_id.update({tool_call.id: known for tool_call in shown.tool_calls})
        self._latest[plan.lane] = _Latest(prints=prints, messages=request.messages, answer=known)
        self._ids[plan.lane] = (call.id, plan.prompt.ids)
        for index, start, end in plan.prompt.turns:
            after = resolved.places[index]
            place = replace(after, call=call, length=end, turn=end - start)
            self._after_turn.setdefault(prints.links[index + 1], place)

    def recall(self, request: ChatRequest) -> dict[int, ChatMessage]:
        """Return the messages of a request that were sampled here, as shown; see rules.Recall."""
        root = self._fingerprinter.root(request.tools)
        turns = [(i, m) for i, m in enumerate(request.messages) if m.role == "assistant"]
        forms = tuple(bare(message) for _, message in turns)
        found: dict[int, ChatMessage] = {}
        taken: set[str] = set()
        prints = self._fingerprinter.messages(root, forms, request.tools)
        for (index, message), without in zip(turns, prints, strict=True):
            equal = [k for k in self._by_bare.get(without, ()) if k.call.id not in taken]
            nominated = self._nominated(message)
            if equal:
                known = nominated if nominated in equal else equal[0]
                found[index] = known.message
                taken.add(known.call.id)
        return found

    def shared_ids(self, resolved: Resolved) -> SharedIds:
        """Return the ids of the shared history, put together from the calls that own them."""
        call, length = resolved.place.call, resolved.place.length
        for owner, ids in self._ids.values():
            if call is not None and owner == call.id:
                return SharedIds(ids[:length], call.sampled_ids if length > len(ids) else ())
        parts: list[tuple[int, ...]] = []
        while call is not None:
            own = call.environment_ids + call.sampled_ids
            parts.append(own[: max(0, length - call.parent_len)])
            length = min(length, call.parent_len)
            call = self._known[call.parent_call].call if call.parent_call else None
        return SharedIds(tuple(chain.from_iterable(reversed(parts))))

    def _shared(
        self, request: ChatRequest, lane: str, prints: Prints, turns: Sequence[int]
    ) -> tuple[Place, int, _Known | None]:
        """Return where the shared history ends and the first message after it.

        Third comes the call that was sampled there, if that message may be its answer rewritten.
        """
        for index in reversed(turns):
            siblings = self._at_prompt.get(prints.links[index])
            known = self._pick(siblings, request.messages[index], prints.messages[index], lane)
            if known is not None and known.print == prints.messages[index]:
                return _after(known), index + 1, None
            if prints.links[index + 1] in self._after_turn:
                return self._after_turn[prints.links[index + 1]], index + 1, None
            if known is not None:
                return _at(known), index, known
        return Place(), 0, None

    def _pick(
        self, siblings: Sequence[_Known] | None, message: ChatMessage, print_: bytes, lane: str
    ) -> _Known | None:
        """Choose among calls sampled at one prompt: equal ones first, a minted id nominates."""
        if not siblings:
            return None
        pool = [known for known in siblings if known.print == print_] or siblings
        nominated = self._nominated(message)
        if nominated in pool:
            return nominated
        return ([known for known in pool if known.lane == lane] or pool)[-1]

    def _find(
        self,
        request: ChatRequest,
        lane: str,
        prints: Prints,
        turns: Sequence[int],
        held: frozenset[str],
    ) -> dict[int, _Known]:
        """Find assistant messages that were sampled on another branch, rewritten ones too."""
        found: dict[int, _Known] = {}
        taken = set(held)
        for index in turns:
            equal = [
                known
                for known in self._by_answer.get(prints.messages[index], ())
                if known.call.id not in taken
            ]
            nominated = self._nominated(request.messages[index])
            if nominated is not None and nominated.call.id in taken:
                nominated = None  # an id that came twice names one call at most
            if nominated is not None and (nominated in equal or not equal):
                found[index] = nominated
            elif equal:
                found[index] = self._nearest(equal, lane)
            else:
                continue
            taken.add(found[index].call.id)
        return found

    def _nearest(self, equal: Sequence[_Known], lane: str) -> _Known:
        """Of equal answers take the latest conversation's, then the lane's, in their order."""
        latest = self._latest.get(lane)
        at_hand = latest.answer.held | {latest.answer.call.id} if latest else NO_CALLS

        def rank(known: _Known) -> tuple[bool, bool]:
            return known.call.id not in at_hand, known.lane != lane

        return min(equal, key=rank)

    def _nominated(self, message: ChatMessage) -> _Known | None:
        ids = (call.id for call in message.tool_calls)
        return next((self._by_tool_id[i] for i in ids if i in self._by_tool_id), None)

    def _in_order(self, ids: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(ids, key=lambda call_id: self._known[call_id].call.index))

    def _fork(
        self, request: ChatRequest, lane: str, prints: Prints, found: set[int]
    ) -> tuple[str, str]:
        """Say why the lane's known history was not continued, and where it first differs."""
        latest = self._latest.get(lane)
        if latest is None or prints.links[-1] in self._at_prompt:
            return "", ""
        if latest.prints.root != prints.root:
            return "tools_changed", ""
        known, messages = latest.all_messages, request.messages
        at = common(latest.all_prints, prints.messages)
        if at == len(messages):
            return "history_cut", self._difference(request, known[at], None)
        if at < len(known):
            return f"{known[at].role}_changed", self._difference(request, known[at], messages[at])
        later = range(at, len(messages))
        strange = (messages[i] for i in later if messages[i].role == "assistant" and i not in found)
        return "unknown_assistant", self._difference(request, None, next(strange, None))

    def _difference(
        self, request: ChatRequest, known: ChatMessage | None, received: ChatMessage | None
    ) -> str:
        defaults = tool_defaults(request.tools)
        forms = (
            self._fingerprinter.canonical(m, defaults) if m else b"" for m in (known, received)
        )
        was, now = (form.decode() for form in forms)
        return first_difference(was, now)


def _at(known: _Known) -> Place:
    """Return the place at which a call was sampled."""
    call = known.call
    return Place(call=call, length=prompt_len(call), held=known.held, before=known.before)


def _after(known: _Known) -> Place:
    """Return the place after a sampled answer."""
    call, turn = known.call, len(known.call.sampled_ids)
    held = known.held | {call.id}
    return Place(call=call, length=prompt_len(call) + turn, turn=turn, held=held, before=known.held)
