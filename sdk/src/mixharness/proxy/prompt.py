"""From a resolved request to prompt ids: known ids as they are, new text as deltas (1.5).

Which history is known was decided before; nothing here compares messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.resolved import Resolved, SharedIds

_LOOK_BACK = 64
"""Ids before a turn that a template may look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt and where its new part begins."""

    ids: tuple[int, ...]
    shared: int
    """Tokens owned by earlier calls; the rest is this call's environment."""
    turns: tuple[tuple[int, int, int], ...] = ()
    """(message index, start, end) of each assistant turn in the new part, counted from the root."""
    replayed: tuple[tuple[int, int], ...] = ()
    """[start, end) ranges of the new part that were sampled on another branch."""
    anew: bool = False
    """The template had to render the whole conversation anew: nothing is shared."""

    @property
    def environment_ids(self) -> tuple[int, ...]:
        """Return the new part."""
        return self.ids[self.shared :]


def check_order(messages: Sequence[ChatMessage]) -> None:
    """Refuse conversations that no chat template can continue.

    Raises:
        BadRequest: no messages, or an assistant message comes first or last.
    """
    if not messages:
        raise BadRequest("messages: at least one is wanted")
    if messages[0].role == "assistant":
        raise BadRequest("messages[0]: a conversation cannot begin with the assistant")
    if messages[-1].role == "assistant":
        raise BadRequest(f"messages[{len(messages) - 1}]: prefilled answers are not supported")


def build_prompt(
    renderer: ChatRenderer, request: ChatRequest, resolved: Resolved, shared: SharedIds
) -> Prompt:
    """Return the ids the engine gets, at a cost proportional to what is new.

    Args:
        renderer: the engine's.
        request: the request, render rules applied.
        resolved: which part of it is known.
        shared: ids of that part.

    Raises:
        BadRequest: the chat template cannot carry this order of messages.
    """
    try:
        return _extended(renderer, request, resolved, shared)
    except _NotExtendableError:
        whole = renderer.render(_with_names(request.messages), request.tools)
        return Prompt(ids=tuple(whole), shared=0, anew=True)


class _NotExtendableError(Exception):
    """What comes next changes what stands before, in a template that is followed to the letter."""


def _extended(
    renderer: ChatRenderer, request: ChatRequest, resolved: Resolved, shared: SharedIds
) -> Prompt:
    """Return the shared ids and what comes after them."""
    # Templates look back at the end of the known part only.
    last = resolved.place.turn
    ids = [*shared.head[-_LOOK_BACK - (last or 0) :], *shared.tail]
    seen, at = len(ids), resolved.start
    base = len(shared) - seen
    turns: list[tuple[int, int, int]] = []
    replayed: list[tuple[int, int]] = []
    if resolved.parent is None:
        run = _run(request.messages, at)
        ids += renderer.render(run, request.tools)
        at += len(run)
    elif last is not None:
        at = _follow(renderer, request, ids, last, at)
    while at < len(request.messages):
        call, start = resolved.spliced.get(at), len(ids)
        turn = call.sampled_ids if call else renderer.turn_ids(request.messages[at])
        ids += turn
        turns.append((at, base + start, base + len(ids)))
        if call:
            replayed.append((start - seen, len(ids) - seen))
        at = _follow(renderer, request, ids, len(turn), at + 1)
    return Prompt(
        ids=shared.head + (shared.tail + tuple(ids[seen:])),
        shared=len(shared),
        turns=tuple(turns),
        replayed=tuple(replayed),
    )


def _follow(
    renderer: ChatRenderer, request: ChatRequest, ids: list[int], turn_len: int, at: int
) -> int:
    """Append what stands between the turn just put down and the next; return where that is."""
    cut = len(ids) - turn_len
    run = _with_names(request.messages[at - 1 : at] + _run(request.messages, at))[1:]
    delta = renderer.extend(ids[max(0, cut - _LOOK_BACK) : cut], ids[cut:], run, request.tools)
    if delta is None and renderer.rerenders:
        raise _NotExtendableError
    if delta is None:
        raise BadRequest(f"messages[{at}]: the chat template cannot follow a turn with this")
    ids += delta
    return at + len(run)


def _with_names(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages whose tool results tell which tool they are of: some templates say it."""
    names: dict[str, str] = {}
    named: list[ChatMessage] = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        name = names.get(message.tool_call_id, "") if message.role == "tool" else ""
        named.append(replace(message, name=name) if name else message)
    return named


def _run(messages: tuple[ChatMessage, ...], start: int) -> tuple[ChatMessage, ...]:
    """Return the messages from `start` up to the next assistant message."""
    turns = (i for i in range(start, len(messages)) if messages[i].role == "assistant")
    return messages[start : next(turns, len(messages))]
