"""What the main agent was told and said, as messages. Tokens and tool schemas are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mixharness.proxy.bodies import Body
from mixharness.proxy.chat import ChatMessage
from mixharness.proxy.dialects.seen import common
from mixharness.proxy.transcript import read_exchanges
from mixharness.tree.prune import Pruning, prune
from mixharness.types import CallRole, ModelCall


def read_conversation(
    calls: Sequence[ModelCall], bodies: Iterable[Body]
) -> tuple[ChatMessage, ...]:
    """Return the messages of the main agent's live calls, oldest first.

    A history that was compacted is followed by what came in its place.

    Args:
        calls: all calls of a rollout.
        bodies: as they were recorded.

    Raises:
        ValueError: the calls do not form a graph, or a body is of no known dialect.
    """
    endings = _endings(calls)
    exchanges = read_exchanges(body for body in bodies if body.call in endings)
    said: list[ChatMessage] = []
    before: tuple[ChatMessage, ...] = ()
    for exchange in (exchanges[call_id] for call_id in endings if call_id in exchanges):
        messages = (*exchange.request.messages, exchange.answer)
        said += messages[common(before, messages) :]
        before = messages
    return tuple(said)


def _endings(calls: Sequence[ModelCall]) -> list[str]:
    """Return the live main calls that no other one continues: each holds all before it."""
    dead = prune(calls, Pruning(max_regenerations=len(calls))).reasons
    live = [call for call in calls if call.role is CallRole.MAIN and call.id not in dead]
    continued = {before for call in live for before in call.continues}
    return [call.id for call in live if call.id not in continued]
