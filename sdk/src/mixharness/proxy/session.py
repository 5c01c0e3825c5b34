"""One rollout's calls: known history in, prompt ids to the engine, records out (section 1).

HTTP, dialects and keep-alives are app.py's and streaming.py's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import replace

import structlog

from mixharness.engine import GenerateRequest, Generation, Sampling, SamplingCancelled
from mixharness.errors import EngineError, boundary
from mixharness.harness import CallIdentity
from mixharness.proxy.admission import (
    Incoming,
    Overflow,
    Plan,
    Rejected,
    Serving,
    SessionSpec,
    Ticket,
    lane_of,
)
from mixharness.proxy.budget import Exhausted, tokens_left
from mixharness.proxy.chat import Answer, ChatRequest
from mixharness.proxy.dialects.seen import Seen
from mixharness.proxy.fingerprint import Fingerprinter
from mixharness.proxy.history import History
from mixharness.proxy.log import CallLog
from mixharness.proxy.prompt import Prompt, build_prompt, check_order
from mixharness.proxy.reading import BodyReader
from mixharness.proxy.records import (
    NOTHING_SAMPLED,
    Outcome,
    Recorder,
    make_answer,
    repaired,
    shown_message,
)
from mixharness.proxy.resolved import Prints, Resolved
from mixharness.proxy.roles import Roles
from mixharness.proxy.rulebook import MATCH_RULES, RENDER_RULES
from mixharness.types import CallRole, Delivery, ModelCall

log = structlog.get_logger()

_MAX_SERVED_AGAIN = 2


class ProxySession:
    """The model endpoint of one rollout. Made by `Proxy.open_session`; lives in its event loop.

    Attributes:
        rollout_id: the rollout's id.
        base_url: this session's address, secret included, without a trailing slash.
        secret: wanted as the API key too.
        notes: `name: detail` per event; names are `foreign_call`, `overflow`, `max_turns`,
            `max_tokens`, `cut_off` (an answer, by the token budget), `engine_error` and
            `late_call`.
        closed: every request is refused with 409.
        reader: reads the requests' bodies.
        seen: what their items were read as, by dialect.
    """

    def __init__(self, serving: Serving, spec: SessionSpec) -> None:
        self.rollout_id, self.base_url, self.secret = spec.rollout_id, spec.base_url, spec.secret
        self.notes: list[str] = []
        self.closed = False
        self.reader = BodyReader()
        self.seen: defaultdict[str, Seen] = defaultdict(Seen)
        self._serving, self._spec = serving, spec
        enabled = serving.settings.render_rules
        known = (*RENDER_RULES, *spec.harness.render_rules)
        self._rules = tuple(rule for rule in known if rule.name in enabled)
        fingerprinter = Fingerprinter((*MATCH_RULES, *spec.harness.match_rules))
        self._history = History(fingerprinter)
        self._roles = Roles(spec.harness, fingerprinter)
        self._log = CallLog(spec.folder)
        self._recorder = Recorder(
            rollout_id=spec.rollout_id,
            temperature=serving.settings.temperature,
            renderer_hash=serving.renderer.hash,
            began=time.monotonic(),
        )
        self._started = 0
        self._calls: dict[str, ModelCall] = {}
        self._duplicates: Counter[str] = Counter()
        self._tickets: dict[tuple[object, ...], Ticket] = {}
        self._running: dict[str, Ticket] = {}

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """Return the records so far, in order of arrival."""
        ordered = sorted(self._calls.values(), key=lambda call: call.index)
        return tuple(replace(call, duplicates=self._duplicates[call.id]) for call in ordered)

    @property
    def pending(self) -> int:
        """Return the number of calls that are held or being sampled."""
        return len(self._running)

    def admit(self, incoming: Incoming) -> Ticket:
        """Start a call, or join the one that this request is a duplicate of.

        Raises:
            Rejected: the session is closed.
            Exhausted: the rollout has used up its turns, its tokens, or, for a harness that ends
                at an overflow, the context.
            Overflow: the prompt leaves no room for an answer.
            BadRequest: no chat template can carry this conversation.
        """
        if self.closed:
            self.notes.append("late_call: a request came after the end")
            log.warning("late_call", rollout=self.rollout_id)
            raise Rejected(409, "this rollout has ended")
        request = self._ruled(incoming.chat)
        check_order(request.messages)
        identity = self._roles.identify(incoming.view, request)
        guessed = self._roles.guessed
        self._demote()
        prints = self._history.prints(request, lane_of(identity))
        key = (identity.agent, prints.links[-1], request.max_tokens)
        known = self._duplicate(key)
        if known is not None:
            return known
        left = self._tokens_left()
        plan = replace(self._plan(request, prints, identity, left), guessed=guessed)
        self._started += 1
        self._history.acknowledge(plan.resolved)
        self._note_compaction(plan)
        return self._start(plan, incoming, key)

    def count_tokens(self, chat: ChatRequest) -> int:
        """Return the length of the very prompt the engine would get.

        Raises:
            BadRequest: no chat template can carry this conversation.
        """
        request = self._ruled(chat)
        check_order(request.messages)
        _, prompt = self._prompt(request, self._history.prints(request, ""), "")
        return len(prompt.ids)

    def leave(self, ticket: Ticket) -> None:
        """Note that a client went away; the last one to go frees the engine."""
        ticket.clients -= 1
        if ticket.clients:
            return
        if ticket.sampled:
            self._settle(ticket, Delivery.CANCELLED)
        else:
            self._tickets.pop(ticket.key, None)
            ticket.task.cancel()

    def delivered(self, ticket: Ticket) -> None:
        """Note that the answer's last byte was sent."""
        self._settle(ticket, Delivery.DELIVERED)

    async def close(self) -> None:
        """End the session: what is being sampled is cancelled, what comes now is refused."""
        if self.closed:
            return
        self.closed = True
        running = list(self._running.values())
        for ticket in running:
            if not ticket.sampled:
                ticket.task.cancel()
        await asyncio.gather(*(ticket.task for ticket in running), return_exceptions=True)
        self._log.close()

    def _ruled(self, chat: ChatRequest) -> ChatRequest:
        for rule in self._rules:
            chat = rule.apply(chat, self._history.recall)
        return chat

    def _prompt(self, request: ChatRequest, prints: Prints, lane: str) -> tuple[Resolved, Prompt]:
        resolved = self._history.resolve(request, lane, prints)
        shared = self._history.shared_ids(resolved)
        prompt = build_prompt(self._serving.renderer, request, resolved, shared)
        return (resolved.anew() if prompt.anew else resolved), prompt

    def _sampled(self) -> int:
        return sum(len(call.sampled_ids) for call in self._calls.values())

    def _tokens_left(self) -> int:
        try:
            return tokens_left(self._spec.limits, self._started, self._sampled())
        except Exhausted as exc:
            self.notes.append(exc.note)
            raise

    def _plan(
        self, request: ChatRequest, prints: Prints, identity: CallIdentity, left: int
    ) -> Plan:
        started = time.monotonic()
        resolved, prompt = self._prompt(request, prints, lane_of(identity))
        context = self._serving.renderer.context
        room = context - len(prompt.ids)
        if room < 1:
            note = f"overflow: a prompt of {len(prompt.ids)} tokens"
            self.notes.append(note)
            if self._spec.harness.ends_at_overflow:
                raise Exhausted("rollout budget exhausted", note)
            raise Overflow(len(prompt.ids), context - 1)
        allowed = min(self._serving.settings.max_tokens, room, left)
        return Plan(
            index=self._started,
            identity=identity,
            request=request,
            resolved=resolved,
            prompt=prompt,
            max_tokens=min(allowed, request.max_tokens or allowed),
            rules=tuple(rule.label for rule in self._rules),
            started=started,
        )

    def _note_compaction(self, plan: Plan) -> None:
        """Name the call that summarized a history, once a conversation begins with its words."""
        summary = self._roles.quoted(plan.request) if plan.guessed and plan.begins_anew else None
        if summary is not None:
            self._identify(summary, CallIdentity(CallRole.COMPACTION, plan.identity.agent))

    def _demote(self) -> None:
        """Name what was asked on the side before the main agent's first request came."""
        for call_id in self._roles.demoted:
            self._identify(call_id, CallIdentity(CallRole.AUXILIARY, f"auxiliary-{call_id}"))
        self._roles.demoted = []

    def _identify(self, call_id: str, identity: CallIdentity) -> None:
        call = replace(self._calls[call_id], role=identity.role, agent=identity.agent)
        self._calls[call_id] = call
        self._log.identified(call)

    def _duplicate(self, key: tuple[object, ...]) -> Ticket | None:
        """Return the call that already answers this request, unless it was acknowledged."""
        ticket = self._tickets.get(key)
        if ticket is None:
            return None
        if ticket.task.done():
            acknowledged = ticket.call_id in self._history.continued
            if acknowledged or ticket.served_again >= _MAX_SERVED_AGAIN:
                return None
            ticket.served_again += 1
        ticket.clients += 1
        self._duplicates[ticket.call_id] += 1
        self._log.duplicate(ticket.call_id)
        return ticket

    def _start(self, plan: Plan, incoming: Incoming, key: tuple[object, ...]) -> Ticket:
        ticket = Ticket(call_id=plan.call_id, key=key)
        ticket.task = asyncio.create_task(self._run(plan, incoming, ticket))
        ticket.task.add_done_callback(lambda task: self._done(ticket, task))
        self._tickets[key] = self._running[ticket.call_id] = ticket
        if len(self._running) == 1 and self._spec.clock:
            self._spec.clock.pause()
        return ticket

    def _done(self, ticket: Ticket, task: asyncio.Task[Answer]) -> None:
        del self._running[ticket.call_id]
        if not self._running and self._spec.clock:
            self._spec.clock.resume()
        if (task.cancelled() or task.exception()) and self._tickets.get(ticket.key) is ticket:
            del self._tickets[ticket.key]  # a failed call answers nobody again

    async def _run(self, plan: Plan, incoming: Incoming, ticket: Ticket) -> Answer:
        try:
            async with self._serving.gate.pass_() as held_s:
                generation = await self._generate(plan)
        except asyncio.CancelledError as exc:
            partial = NOTHING_SAMPLED
            if isinstance(exc, SamplingCancelled):
                partial = replace(partial, generation=exc.generation)
            self._calls[plan.call_id] = self._recorder.record(plan, partial)
            self._log.cancelled(self._calls[plan.call_id])
            raise
        except EngineError as exc:
            self.notes.append(f"engine_error: {exc}")
            log.warning("engine_error", rollout=self.rollout_id, call=plan.call_id, error=str(exc))
            raise
        ticket.sampled = True
        if plan.guessed:  # what came meanwhile may tell more
            plan = replace(plan, identity=self._roles.guess(plan.request))
        prompt_ids, tools = plan.prompt.ids, plan.request.tools
        turn = self._serving.renderer.parse(generation.ids, prompt_ids, tools)
        if self._spec.harness.repair_malformed_calls:
            turn = repaired(plan, turn, generation)
        answer = make_answer(plan, turn, generation)
        call = self._recorder.record(
            plan, Outcome(generation=generation, parse_status=turn.status, held_s=held_s)
        )
        self._calls[call.id] = call
        if call.finish_reason == "length" and self._sampled() >= self._spec.limits.tokens:
            self.notes.append(f"cut_off: {call.id} took the last of {self._sampled()} tokens")
        shown = shown_message(answer)
        self._history.add(call, plan, shown)
        self._roles.saw(call.id, shown, guessed=plan.guessed)
        await self._log.sampled(call, incoming.raw, incoming.encode(answer))
        return answer

    async def _generate(self, plan: Plan) -> Generation:
        with boundary(EngineError, f"engine {self._serving.engine.name}"):
            return await self._serving.engine.generate(
                GenerateRequest(
                    session_id=self.rollout_id,
                    request_id=f"{self.rollout_id}/{plan.call_id}",
                    prompt_ids=plan.prompt.ids,
                    sampling=Sampling(
                        temperature=self._serving.settings.temperature,
                        max_tokens=plan.max_tokens,
                        stop_ids=self._serving.renderer.stop_ids,
                    ),
                )
            )

    def _settle(self, ticket: Ticket, delivery: Delivery) -> None:
        self._calls[ticket.call_id] = replace(self._calls[ticket.call_id], delivery=delivery)
        if not self.closed:
            self._log.delivery(ticket.call_id, delivery)
