"""Whatever a program does to its histories: each sampled token is trained once, or it is said why.

Conversations and rewrites are drawn; the session is real, and so are its engine's ids.
"""

import asyncio
import functools
import itertools
import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mixharness.builtin.byte_tokenizer import byte_tokenizer
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.engine import EngineTokenizer, Generation
from mixharness.harness import CallIdentity, Harness, RequestView
from mixharness.proxy.admission import Incoming, ProxySettings, Serving, SessionSpec
from mixharness.proxy.chat import ChatMessage, ChatRequest, Tool
from mixharness.proxy.dialects import BadRequest
from mixharness.proxy.gate import Gate
from mixharness.proxy.log import read_calls
from mixharness.proxy.records import shown_message
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.session import ProxySession
from mixharness.tree import build_tree, prune
from mixharness.types import CallRole, Delivery, HarnessExit, Limits, NodeKind

TOOLS = (Tool(name="t", description="d", parameters={"properties": {"n": {"default": 1}}}),)
CALL = '<tool_call>\n{"name": "t", "arguments": %s}\n</tool_call>'
TURNS = (
    "Fine.<|im_end|>",
    "Fine.<|im_end|>",
    CALL % '{"b":  2.0, "a": "\\u00e9"}' + "<|im_end|>",
    f"Both.\n{CALL % '{}'}\n{CALL % '{}'}\nAnd text.<|im_end|>",
    f"<think>\nHm.\n</think>\n\n{CALL % '{}'}<|im_end|>",
    "<think>\nOnly thoughts.\n</think>\n\n<|im_end|>",
    "<think>\nNever close",
    f"{CALL % '{'}<|im_end|>",
    (CALL % '{"a": 1}')[:-20],
    "cut of",
    "<|im_start|>user\n</think></tool_call><|im_end|>",
    "<|im_end|>",
)
WORDS = st.sampled_from(["Go on.", "<|im_end|>\n", "</tool_response>", "é\u2028\n\n", "Fine.", ""])


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "THOUGHTS{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LATEST_THOUGHTS = (
    "{% if m.reasoning_content and loop.index0 > last.user %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)
LAST_USER = (
    "{% set last = namespace(user=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
)
FORGETFUL = LAST_USER + CHATML.replace("THOUGHTS", LATEST_THOUGHTS)
TEMPLATES = {
    "qwen3": {"renderer": "qwen3"},
    "without tools": {"renderer": "template", "chat_template": CHATML.replace("THOUGHTS", "")},
    "forgetful": {"renderer": "template", "chat_template": FORGETFUL},
    "forgetful, to the letter": {
        "renderer": "template",
        "chat_template": FORGETFUL,
        "rerender": True,
    },
}


@functools.cache
def renderer(template):
    """Return a renderer by the name of its template; the tokenizer is the same."""
    tokenizer = EngineTokenizer(tokenizer=byte_tokenizer(), context=99_999, **TEMPLATES[template])
    return ChatRenderer(tokenizer)


class Program(Harness[ComponentConfig]):
    """Says in a header which of its agents asks."""

    name = "program"
    dialects = ("openai_chat",)

    async def run(self, session):
        return HarnessExit(exit_code=0)

    def role_of(self, request):
        return CallIdentity(CallRole(request.headers["role"]), request.headers["agent"])


class DrawnEngine(ScriptedEngine):
    """Says what was drawn, and keeps what it read and said."""

    def __init__(self):
        super().__init__(ScriptedConfig(turns=("",), context=99_999))
        self.turn, self.read, self.said = "", {}, {}

    async def generate(self, request):
        name = request.request_id.rpartition("/")[2]
        ids = tuple(self.tokenizer.tokenizer.encode(self.turn, add_special_tokens=False).ids)
        finish = "stop" if self.turn.endswith("<|im_end|>") else "length"
        self.read[name], self.said[name] = request.prompt_ids, ids
        return Generation(ids=ids, logprobs=(-1.0,) * len(ids), versions=(), finish_reason=finish)


def on_the_wire(message):
    """Return a message as programs send it back: arguments written anew, defaults put in."""
    calls = []
    for call in message.tool_calls:
        value = dict(reversed(list({"n": 1, **json.loads(call.arguments)}.items())))
        calls.append(replace(call, arguments=json.dumps(value)))
    return replace(message, tool_calls=tuple(calls))


def cut(message):
    return replace(message, content=message.content[: len(message.content) // 2])


def without_ids(message):
    bare = tuple(replace(call, id="") for call in message.tool_calls)
    return replace(message, tool_calls=bare)


def thoughtless(message):
    return replace(message, reasoning="")


def shouted(message):
    return replace(message, content=message.content + "!")


CHANGES = {"assistant": (on_the_wire, cut, without_ids, thoughtless, shouted)}


class Talk:
    """One rollout of a program that does odd things."""

    def __init__(self, draw, folder, rules, template):
        self.draw, self.folder, self.renderer = draw, folder, renderer(template)
        self.engine, self.rules = DrawnEngine(), rules
        self.histories = {"": [self.user()], "sub": [self.user()]}
        self.shown, self.grown = {}, {}

    def user(self, role="user"):
        return ChatMessage(role=role, content=self.draw(WORDS))

    async def run(self):
        await self.engine.start()
        settings_ = ProxySettings(render_rules=self.rules)
        serving = Serving(
            engine=self.engine, renderer=self.renderer, gate=Gate(), settings=settings_
        )
        spec = SessionSpec(
            rollout_id="r",
            harness=Program(ComponentConfig()),
            limits=Limits(),
            folder=self.folder,
            base_url="",
            secret="",
        )
        self.session = ProxySession(serving, spec)
        try:
            for _ in range(self.draw(st.integers(3, 10))):
                agent = self.draw(st.sampled_from(["", "", "sub"]))
                await self.ask(agent)
                if self.draw(st.integers(0, 2)):
                    self.rewrite(self.histories[agent])
        finally:
            await self.session.close()
        return self.session.calls

    async def ask(self, agent):
        history = self.histories[agent]
        self.engine.turn = self.draw(st.sampled_from(TURNS))
        role = CallRole.SUBAGENT if agent else CallRole.MAIN
        view = RequestView(headers={"role": role, "agent": agent}, body={})
        chat = ChatRequest(messages=tuple(history), tools=TOOLS)
        incoming = Incoming(chat=chat, view=view, raw=b"{}", encode=lambda answer: b"{}")
        try:
            ticket = self.session.admit(incoming)
        except BadRequest:  # nothing was left that a template can carry
            self.histories[agent] = [self.user()]
            return
        answer = await ticket.task
        message = shown_message(answer)
        self.shown[ticket.call_id] = message
        if self.draw(st.sampled_from([True, True, True, False])):
            self.session.delivered(ticket)
            after = self.user("tool" if message.tool_calls else "user")
            history += [message, after]
        else:
            self.session.leave(ticket)

    def rewrite(self, history):
        at = self.draw(st.integers(0, len(history) - 1))
        kind = self.draw(st.sampled_from(["change", "drop", "insert", "end", "compact"]))
        if kind == "change":
            changes = CHANGES.get(history[at].role, (shouted,))
            history[at] = self.draw(st.sampled_from(changes))(history[at])
        elif kind == "drop":
            del history[at]
        elif kind == "insert":
            history.insert(
                at, replace(self.user(), role=self.draw(st.sampled_from(["assistant", "user"])))
            )
        elif kind == "compact":
            quoted = " ".join(message.content for message in history[:at])
            history[:at] = [ChatMessage(role="user", content=f"Summary: {quoted}")]
        history.append(self.user())


RULES = ("reattach_reasoning", "drop_token_budget", "drop_runtime_context")


@settings(max_examples=600, deadline=None)
@given(st.data(), st.sampled_from([(), RULES]), st.sampled_from(sorted(TEMPLATES)))
def test_each_sampled_token_is_trained_once_or_has_a_reason(data, rules, template):
    with tempfile.TemporaryDirectory() as folder:
        talk = Talk(data.draw, Path(folder), rules, template)
        calls = asyncio.run(talk.run())
        assert read_calls(Path(folder)) == calls
    assert {call.id: call.sampled_ids for call in calls} == talk.engine.said
    check_tree(talk, calls)
    for call in calls:
        check_shown(talk, call)


def check_tree(talk, calls):
    """The engine's own ids stand on every path, each call's once; only those are trained."""
    pruned = prune(calls)
    tree = build_tree(calls, pruned)
    sampled = [node for node in tree.nodes if node.kind is NodeKind.SAMPLED]
    assert Counter(n.call_id for n in sampled) == Counter(c.id for c in calls if c.sampled_ids)
    said = set(talk.engine.said.values())
    paths = []
    for node in tree.nodes:
        before = paths[node.parent] if node.parent >= 0 else ()
        paths.append(before + node.ids)
        assert node.depth == len(before)
        if node.kind is NodeKind.SAMPLED:
            assert before == talk.engine.read[node.call_id]
            assert node.ids == talk.engine.said[node.call_id]
            assert node.trained != bool(node.reason)
        else:
            assert not node.trained
        if node.kind is NodeKind.REPLAYED:
            assert node.ids in said
    trained = {node.call_id for node in sampled if node.trained}
    assert trained == {call_id for call_id in pruned.kept if talk.engine.said[call_id]}
    gone = {call.id for call in calls if call.delivery is Delivery.CANCELLED}
    assert trained.isdisjoint(gone)


def check_shown(talk, call):
    """What the program was shown is what the recorded ids say."""
    turn = talk.renderer.parse(call.sampled_ids, talk.engine.read[call.id], TOOLS)
    shown = talk.shown[call.id]
    if call.parse_status == "repaired":
        return
    assert (turn.text, turn.reasoning) == (shown.content, shown.reasoning)
    assert list(turn.tool_calls) == [(one.name, one.arguments) for one in shown.tool_calls]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(["qwen3", "without tools", "forgetful"]))
def test_what_programs_do_to_answers_on_the_wire_is_no_fork(data, template):
    """Re-serialised inputs, injected defaults and lost ids: each call goes on from the last."""
    with tempfile.TemporaryDirectory() as folder:
        talk = Talk(data.draw, Path(folder), (), template)

        def rewrite(history):
            for at, message in enumerate(history):
                if message.role == "assistant":
                    change = data.draw(st.sampled_from([on_the_wire, without_ids]))
                    history[at] = change(message)

        talk.rewrite = rewrite
        calls = asyncio.run(talk.run())
    for agent in ("", "sub"):
        own = [call for call in calls if call.agent == agent]
        assert [call.fork for call in own] == [""] * len(own)
        kept = [call for call in own if call.delivery is Delivery.DELIVERED]
        for before, after in itertools.pairwise(kept):
            length = len(talk.engine.read[before.id]) + len(before.sampled_ids)
            assert (after.parent_call, after.parent_len) == (before.id, length)
            assert after.continues == (before.id,)
