"""20,000 bodies per dialect: live conversations, broken on purpose or mutated at random.

Driven in process through the ASGI application. Each session's texts carry a mark of its own, and
the engine repeats every mark it reads, so that anything of another session would show.
"""

import asyncio
import contextlib
import json
import random
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import anthropic.types as anthropic_types
import openai.types.chat as chat_types
import openai.types.responses as responses_types
import orjson
import pytest
from openai.types.shared import ErrorObject

from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.harness import Harness
from mixharness.proxy.app import Proxy, ProxySettings
from mixharness.types import HarnessExit, Limits

BODIES = 20_000
SESSIONS = 8
BODIES_PER_SESSION = 500
LONGEST_S = 60.0
TEXTS = (
    "",
    " ",
    "Go on.",
    "é😀\u2028\x00",
    "<|im_end|>\n<|im_start|>user\n",
    "</tool_call>",
    "a" * 99,
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "number", "default": 1}}}
MARK = re.compile(r"mark-[0-9a-f]{16}-")
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
DEEP = "[" * 600 + "]" * 600
TURNS = (
    "Fine.",
    "",
    "<think>\nHm.\n</think>\n\nFine.",
    "<think>\nHm.\n</think>\n\n",
    CALL % ("run", '{"n":  1.0, "s": "\\u00e9"}'),
    "Both.\n" + CALL % ("run", "{}") + "\n" + CALL % ("patch", '{"input": "x"}'),
    CALL % ("patch", '{"input": 5}') + "\n" + CALL % ("space__run", "{}"),
    CALL % ("run", '{"n": ') + "\ntail",
    CALL % ("", "null"),
    CALL % ("run", f'{{"n": {DEEP}}}'),
)


class Plain(Harness[ComponentConfig]):
    name = "plain"
    dialects = ("openai_chat", "anthropic_messages", "openai_responses")

    async def run(self, session):
        return HarnessExit(exit_code=0)


class Repeating(ScriptedEngine):
    """Says one of the turns, and every mark that stands in the prompt."""

    def _turn(self, request):
        prompt = self.tokenizer.tokenizer.decode(list(request.prompt_ids))
        marks = " ".join(sorted(set(MARK.findall(prompt))))
        return f"{TURNS[len(prompt) % len(TURNS)]} {marks}"


@dataclass
class Reply:
    status: int = 0
    content: bytes = b""
    kind: str = ""


async def post(app, path: str, body: bytes, headers: dict[str, str]) -> Reply:
    reply, waiting = Reply(), [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return waiting.pop() if waiting else await asyncio.get_running_loop().create_future()

    async def send(message):
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.kind = dict(message["headers"])[b"content-type"].decode()
        else:
            reply.content += message["body"]

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"headers": raw, "query_string": b"", "root_path": "", "http_version": "1.1"}
    await app(scope | {"scheme": "http", "server": ("p", 80), "client": ("c", 1)}, receive, send)
    return reply


# What each dialect's bodies look like, and what the vendor's own types say of an answer.


def by_type(union: Any) -> dict[str, Any]:
    members = get_args(get_args(union)[0])
    return {get_args(member.model_fields["type"].annotation)[0]: member for member in members}


def sse(content: bytes) -> list[str]:
    return [line[6:] for line in content.decode().split("\n") if line.startswith("data: ")]


@dataclass
class AnthropicWire:
    path = "/v1/messages"
    turns = "messages"
    limit = "max_tokens"
    events = by_type(anthropic_types.RawMessageStreamEvent)

    def headers(self, secret):
        return {"x-api-key": secret}

    def tool(self, name):
        return {"name": name, "description": "Do it.", "input_schema": SCHEMA}

    def start(self, texts):
        blocks = [{"type": "text", "text": text} for text in texts[1:]]
        messages = [{"role": "user", "content": blocks or texts[0]}]
        return {"max_tokens": 60, "system": texts[0], "messages": messages}

    def follow(self, answer, text):
        calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": c, "content": text} for c in calls]
        return [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": results or text},
        ]

    def check(self, content, stream):
        if not stream:
            return anthropic_types.Message.model_validate_json(content, strict=False)
        events = [orjson.loads(data) for data in sse(content)]
        for event in events:
            self.events[event["type"]].model_validate(event)
        kinds = [event["type"].removeprefix("content_block_") for event in events]
        inner = " ".join(kinds[1:-2])
        assert re.fullmatch(r"(start (delta )*stop ?)*", inner), inner
        assert kinds[:1] + kinds[-2:] == ["message_start", "message_delta", "message_stop"]

    def check_error(self, body):
        anthropic_types.ErrorResponse.model_validate(body | {"request_id": None})

    broken = (
        lambda b: b["messages"].append(
            {"role": "user", "content": [{"type": "image", "source": {}}]}
        ),
        lambda b: b["messages"].append({"role": "robot", "content": "x"}),
        lambda b: b["messages"].append({"role": "user"}),
        lambda b: b["messages"].append({"role": "assistant", "content": "prefilled"}),
        lambda b: b.update(stop_sequences=["x"]),
        lambda b: b.update(system=5),
    )


@dataclass
class ChatWire:
    path = "/v1/chat/completions"
    turns = "messages"
    limit = "max_tokens"

    def headers(self, secret):
        return {"authorization": f"Bearer {secret}"}

    def tool(self, name):
        function = {"name": name, "description": "Do it.", "parameters": SCHEMA}
        return {"type": "function", "function": function}

    def start(self, texts):
        parts = [{"type": "text", "text": text} for text in texts[1:]]
        system = {"role": "developer", "content": texts[0]}
        return {"messages": [system, {"role": "user", "content": parts or texts[0]}]}

    def follow(self, answer, text):
        message = answer["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call in message.get("tool_calls", ())
        ]
        return [message, *(results or [{"role": "user", "content": text}])]

    def check(self, content, stream):
        if not stream:
            return chat_types.ChatCompletion.model_validate_json(content)
        *chunks, done = sse(content)
        for chunk in chunks:
            chat_types.ChatCompletionChunk.model_validate_json(chunk)
        assert done == "[DONE]"

    def check_error(self, body):
        ErrorObject.model_validate(body["error"])

    broken = (
        lambda b: b["messages"].append({"role": "user", "content": [{"type": "image_url"}]}),
        lambda b: b["messages"].append({"role": ["user"], "content": "x"}),
        lambda b: b["messages"].append({"role": "tool", "content": "x"}),
        lambda b: b["messages"].append({"role": "assistant", "content": "prefilled"}),
        lambda b: b.update(n=2),
        lambda b: b.update(stream_options=[1]),
    )


@dataclass
class ResponsesWire:
    path = "/v1/responses"
    turns = "input"
    limit = "max_output_tokens"
    events = by_type(responses_types.ResponseStreamEvent)
    headers = ChatWire.headers
    check_error = ChatWire.check_error

    def tool(self, name):
        function = {"type": "function", "name": name, "description": "Do.", "parameters": SCHEMA}
        if name == "patch":
            return {"type": "custom", "name": name, "format": {"type": "text"}}
        if name == "space":
            return {"type": "namespace", "name": name, "tools": [self.tool("run")]}
        return function

    def start(self, texts):
        parts = [{"type": "input_text", "text": text} for text in texts[1:]]
        user = {"type": "message", "role": "user", "content": parts or texts[0]}
        return {"instructions": texts[0], "input": [user], "store": False}

    def follow(self, answer, text):
        results = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": text}
            for item in answer["output"]
            if "call_id" in item
        ]
        return [*answer["output"], *(results or [{"role": "user", "content": text}])]

    def check(self, content, stream):
        if not stream:
            return responses_types.Response.model_validate_json(content)
        events = [orjson.loads(data) for data in sse(content)]
        for event in events:
            self.events[event["type"]].model_validate(event)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] in ("response.completed", "response.incomplete")

    broken = (
        lambda b: b["input"].append({"role": "user", "content": [{"type": "input_image"}]}),
        lambda b: b["input"].append({"type": "item_reference", "id": "x"}),
        lambda b: b["input"].append({"type": "function_call_output", "output": "x"}),
        lambda b: b["input"].append({"role": "assistant", "content": "prefilled"}),
        lambda b: b.update(previous_response_id="x"),
        lambda b: b.update(instructions=["x"]),
    )


WIRES = {"anthropic": AnthropicWire(), "chat": ChatWire(), "responses": ResponsesWire()}
BROKEN = (
    lambda b, wire: b.update({wire.limit: 0}),
    lambda b, wire: b.update({wire.limit: "9"}),
    lambda b, wire: b.update({wire.turns: {}}),
    lambda b, wire: b.pop(wire.turns),
    lambda b, wire: b[wire.turns].append("x"),
    lambda b, wire: b.update(stream="yes"),
    lambda b, wire: b.update(model=5),
    lambda b, wire: b.update(tools="x"),
    lambda b, wire: b.update(tools=[wire.tool("")]),
    lambda b, wire: b.update(tools=[{"type": "web_search"}]),
)
JUNK = (
    *(None, True, False, 0, -1, 1.5, 2**63, 10**30, "", "x", [], {}, [[]], [None], {"": None}),
    *("user", "assistant", "tool", "system", "text", "reasoning", "message", "tool_use"),
    *("function_call", "custom_tool_call", "mh1.0.", {"type": "text"}, {"role": "user"}),
    json.loads("[" * 300 + "]" * 300),
)
BYTES = (b"", b"null", b"[]", b"\xff", b"{", b"[" * 100_000, b'{"a":NaN}', b'{"a":1e999}', b"\x00")


@dataclass
class Fuzzer:
    """One session's bodies: a live conversation, and what is made of it."""

    wire: Any
    mark: str
    rng: random.Random
    body: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return self.mark + self.rng.choice(TEXTS)

    def restart(self) -> None:
        texts = [self.text() for _ in range(self.rng.randint(1, 3))]
        names = self.rng.sample(["run", "patch", "space"], self.rng.randint(0, 3))
        self.body = self.wire.start(texts) | {"model": "policy"}
        if names:
            self.body["tools"] = [self.wire.tool(name) for name in names]

    def follow(self, answer: dict[str, Any]) -> None:
        self.body[self.wire.turns] += self.wire.follow(answer, self.text())

    def next(self) -> tuple[bytes, str]:
        """Return a body and what must come of it: `ok`, `bad` or `any`."""
        if not self.body or len(self.body[self.wire.turns]) > 8:
            self.restart()
        body = orjson.loads(orjson.dumps(self.body))  # a deep copy
        if self.rng.random() < 0.3:
            body["stream"] = True
        kind = self.rng.random()
        if kind < 0.2:
            return orjson.dumps(body), "ok"
        if kind < 0.45:
            change = self.rng.choice([*BROKEN, *self.wire.broken])
            change(body, self.wire) if change in BROKEN else change(body)
            return orjson.dumps(body), "bad"
        if kind < 0.9:
            for _ in range(self.rng.randint(1, 3)):
                self.mutate(body)
            return json.dumps(body).encode(), "any"
        return self.damaged(json.dumps(body).encode()), "any"

    def mutate(self, body: dict[str, Any]) -> None:
        node: Any = body
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = self.rng.choice(keys)
            if not (isinstance(node[key], dict | list) and node[key]) or self.rng.random() < 0.2:
                break
            node = node[key]
        action = self.rng.randrange(5)
        if action == 0:
            del node[key]
            if not body:
                body["x"] = 1
        elif action == 1 and isinstance(node, list):
            node.insert(self.rng.randrange(len(node) + 1), node[key])
        elif action == 2 and isinstance(node, dict):
            node[self.rng.choice(["type", "role", "content", "id", "x", "name"])] = node.pop(key)
        elif action == 3 and isinstance(node[key], str):
            at = self.rng.randrange(len(node[key]) + 1)
            node[key] = node[key][:at] + self.rng.choice((*TEXTS, "\ud83d")) + node[key][at:]
        else:
            node[key] = self.rng.choice(JUNK)

    def damaged(self, raw: bytes) -> bytes:
        at = self.rng.randrange(len(raw))
        choice = self.rng.randrange(4)
        if choice == 0:
            return raw[:at]
        if choice == 1:
            return raw[:at] + bytes([self.rng.randrange(256)]) + raw[at + 1 :]
        if choice == 2:
            return raw[:at] + raw[at : at + 40] + raw[at:]
        return self.rng.choice(BYTES)


@dataclass
class Site:
    """A proxy, its engine, and a count of what came back."""

    wire: Any
    proxy: Proxy
    folder: Path
    found: dict[str, int] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)

    async def work(self, worker: int, bodies: int) -> None:
        """Send bodies to one session after another."""
        for number in range(0, bodies, BODIES_PER_SESSION):
            name = f"{worker}-{number}"
            session = self.proxy.open_session(
                rollout_id=name,
                harness=Plain(ComponentConfig()),
                limits=Limits(max_turns=10**9),
                folder=self.folder / name,
            )
            path = session.base_url.partition("/r/")[2]
            rng = random.Random(name)
            fuzzer = Fuzzer(self.wire, f"mark-{rng.getrandbits(64):016x}-", rng)
            self.marks.add(fuzzer.mark)
            for _ in range(min(BODIES_PER_SESSION, bodies - number)):
                await self.one(fuzzer, f"/r/{path}{self.wire.path}", session.secret)
            assert session.notes == [] or all(n.startswith("overflow") for n in session.notes)
            await session.close()

    async def one(self, fuzzer: Fuzzer, path: str, secret: str) -> None:
        raw, expected = fuzzer.next()
        try:
            async with asyncio.timeout(LONGEST_S):
                reply = await post(self.proxy.app, path, raw, self.wire.headers(secret))
            self.judge(reply, expected, fuzzer)
        except Exception as exc:
            exc.add_note(f"{expected}: {raw[:3000]!r}")
            raise

    def judge(self, reply: Reply, expected: str, fuzzer: Fuzzer) -> None:
        allowed = {"ok": (200,), "bad": (400,), "any": (200, 400)}[expected]
        assert reply.status in allowed, (reply.status, reply.content)
        foreign = self.marks - {fuzzer.mark}
        assert foreign.isdisjoint(MARK.findall(reply.content.decode()))
        key = f"{expected} {reply.status}"
        self.found[key] = self.found.get(key, 0) + 1
        if reply.status == 400:
            self.wire.check_error(orjson.loads(reply.content))
            return
        stream = reply.kind.startswith("text/event-stream")
        self.wire.check(reply.content, stream)
        if expected == "ok" and not stream:
            fuzzer.follow(orjson.loads(reply.content))


@contextlib.asynccontextmanager
async def opened(wire: Any):
    engine = Repeating(ScriptedConfig(turns=("x",)))
    await engine.start()
    proxy = Proxy(engine, ProxySettings(max_tokens=1500))
    await proxy.start()
    # The bodies' log is synced to disk call by call: memory makes that cheap where there is some.
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        try:
            yield Site(wire, proxy, Path(folder))
        finally:
            await proxy.stop()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("name", WIRES)
async def test_no_body_breaks_the_proxy(name):
    async with opened(WIRES[name]) as site, asyncio.TaskGroup() as group:
        for worker in range(SESSIONS):
            group.create_task(site.work(worker, BODIES // SESSIONS))
    assert sum(site.found.values()) == BODIES
    assert min(site.found.get(key, 0) for key in ("ok 200", "bad 400", "any 200", "any 400")) > 900
