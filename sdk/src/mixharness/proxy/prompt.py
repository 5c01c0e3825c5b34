"""From a resolved request to prompt ids: known ids as they are, new text as deltas (1.5).

Which history is known was decided before; nothing here compares messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixharness.proxy.chat import ChatMessage, ChatRequest
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.history import Resolved
from mixharness.proxy.renderer import ChatRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt and where its new part begins."""

    ids: tuple[int, ...]
    shared: int
    """Tokens owned by earlier calls; the rest is this call's environment."""
    replayed: tuple[tuple[int, int], ...] = ()
    """[start, end) ranges of the new part that were sampled on another branch."""

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
    renderer: ChatRenderer, request: ChatRequest, resolved: Resolved, shared_ids: list[int]
) -> Prompt:
    """Return the ids the engine gets, at a cost proportional to what is new.

    Args:
        renderer: the engine's.
        request: the request, render rules applied.
        resolved: which part of it is known.
        shared_ids: ids of that part; extended in place.

    Raises:
        BadRequest: the chat template cannot carry this order of messages.
    """
    ids, shared, at = shared_ids, len(shared_ids), resolved.start
    replayed: list[tuple[int, int]] = []
    if resolved.parent is None:
        run = _run(request.messages, at)
        ids += renderer.render(run, request.tools)
        at += len(run)
    elif resolved.whole:
        at = _follow(renderer, request, ids, len(resolved.parent.sampled_ids), at)
    while at < len(request.messages):
        call = resolved.spliced.get(at)
        turn = call.sampled_ids if call else renderer.turn_ids(request.messages[at])
        if call:
            replayed.append((len(ids) - shared, len(ids) - shared + len(turn)))
        ids += turn
        at = _follow(renderer, request, ids, len(turn), at + 1)
    return Prompt(ids=tuple(ids), shared=shared, replayed=tuple(replayed))


def _follow(
    renderer: ChatRenderer, request: ChatRequest, ids: list[int], turn_len: int, at: int
) -> int:
    """Append what stands between the turn just put down and the next; return where that is."""
    cut = len(ids) - turn_len
    run = _run(request.messages, at)
    delta = renderer.extend(ids[max(0, cut - 64) : cut], ids[cut:], run, request.tools)
    if delta is None:
        raise BadRequest(f"messages[{at}]: the chat template cannot follow a turn with this")
    ids += delta
    return at + len(run)


def _run(messages: Sequence[ChatMessage], start: int) -> Sequence[ChatMessage]:
    """Return the messages from `start` up to the next assistant message."""
    turns = (i for i in range(start, len(messages)) if messages[i].role == "assistant")
    return messages[start : next(turns, len(messages))]
