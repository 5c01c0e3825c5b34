"""What the proxy costs per call in a long conversation, with an engine that answers at once.

One conversation of 300 turns, about 68,000 tokens and 350 kB, is played over HTTP (latency) and
once more past HTTP (CPU of our own work, reading and parsing the body left out). In the same call
the last prompts are rendered whole by the same renderer, and LiteLLM's proxy relays the bodies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import orjson
import structlog
from benchmarks.litellm_proxy import NotInstalled, Upstream, install, running
from tokenizers import Tokenizer

from mixharness import Harness, HarnessExit, Limits, Session
from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.component import ComponentConfig
from mixharness.engine import GenerateRequest, Generation
from mixharness.harness import RequestView
from mixharness.proxy.admission import Incoming, ProxySettings
from mixharness.proxy.app import Proxy, ProxySession
from mixharness.proxy.chat import ChatRequest
from mixharness.proxy.dialects.openai_chat import OpenAIChat
from mixharness.proxy.renderer import ChatRenderer
from mixharness.types import VersionSpan
from mixharness_trainer.bpe import train_bpe

log = structlog.get_logger()

MARKS = (10, 100, 300)
WINDOW = 8
"""A mark stands for the turns up to it, this many."""
VOCAB_SIZE, CONTEXT = 16_384, 100_000
SYSTEM_TOKENS, RESULT_TOKENS, SAID_TOKENS = 2_000, 122, 24
TOOLS = 12
DIALECT = OpenAIChat()
UNUSED: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
"""What the vendor's client adds to a message that a program sends back as it got it."""


class Program(Harness[ComponentConfig]):
    """Stands for any program without hints or rules."""

    name = "program"
    dialects = ("openai_chat",)

    async def run(self, session: Session) -> HarnessExit:
        """Do nothing; the benchmark makes the calls."""
        return HarnessExit(exit_code=0)


class Words:
    """Real prose, cut by tokens."""

    def __init__(self) -> None:
        texts = [topics[name] for name in sorted(topics)]
        # Twice, so that every word becomes one token, as most are in a real vocabulary.
        self.tokenizer: Tokenizer = train_bpe(texts * 2, VOCAB_SIZE)
        self._ids = self.tokenizer.encode("\n".join(texts), add_special_tokens=False).ids
        self._at = 0

    def take(self, num_tokens: int) -> str:
        """Return the next text of that length, from the beginning again after the end."""
        if self._at + num_tokens > len(self._ids):
            self._at = 0
        ids = self._ids[self._at : self._at + num_tokens]
        self._at += num_tokens
        return self.tokenizer.decode(ids)


class InstantEngine(ScriptedEngine):
    """Plays turns that were tokenised beforehand."""

    async def start(self) -> None:
        """Load the tokenizer and tokenise all turns."""
        await super().start()
        self._answers = [self._tokenised(f"{turn}<|im_end|>") for turn in self.config.turns]
        self._given: Counter[str] = Counter()

    def _tokenised(self, turn: str) -> Generation:
        ids = self.tokenizer.tokenizer.encode(turn, add_special_tokens=False).ids
        return Generation(
            ids=tuple(ids),
            logprobs=(-1.0,) * len(ids),
            versions=(VersionSpan(0, 0, len(ids)),),
            finish_reason="stop",
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Give the session's next answer; the last one is repeated."""
        number = self._given[request.session_id]
        self._given[request.session_id] += 1
        return self._answers[min(number, len(self._answers) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All texts of the conversation."""

    system: str
    task: str
    tools: list[dict[str, Any]]
    turns: list[str]
    """What the policy answers, in its own wire form."""
    results: list[str]

    @classmethod
    def of(cls, words: Words) -> Material:
        """Cut it from prose."""
        calls = [
            orjson.dumps({"name": "tool_0", "arguments": {"command": words.take(SAID_TOKENS)}})
            for _ in range(MARKS[-1])
        ]
        schema = {"type": "object", "properties": {"command": {"type": "string"}}}
        functions = [
            {"name": f"tool_{n}", "description": words.take(80), "parameters": schema}
            for n in range(TOOLS)
        ]
        return cls(
            system=words.take(SYSTEM_TOKENS),
            task=words.take(RESULT_TOKENS),
            tools=[{"type": "function", "function": function} for function in functions],
            turns=[
                f"{words.take(SAID_TOKENS)}\n<tool_call>\n{call.decode()}\n</tool_call>"
                for call in calls
            ],
            results=[words.take(RESULT_TOKENS) for _ in range(MARKS[-1])],
        )


@dataclass(slots=True)
class Conversation:
    """The messages so far, as a program keeps them."""

    material: Material
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = [
            {"role": "system", "content": self.material.system},
            {"role": "user", "content": self.material.task},
        ]

    def body(self) -> bytes:
        """Return the next request."""
        fields = {"model": "policy", "messages": self.messages, "tools": self.material.tools}
        return orjson.dumps(fields)

    def answered(self, payload: bytes, turn: int) -> None:
        """Take an answer, and add the result of the tool it calls."""
        message = orjson.loads(payload)["choices"][0]["message"]
        (call,) = message["tool_calls"]
        content = [{"type": "text", "text": self.material.results[turn]}]
        answer = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"]}
        self.messages += [message | UNUSED, answer | {"content": content}]


class Site:
    """A started proxy; every session of it is a conversation of its own."""

    def __init__(self, engine: InstantEngine, proxy: Proxy, folder: Path) -> None:
        self.engine, self.proxy, self._folder = engine, proxy, folder
        self._numbers = count()

    def session(self) -> ProxySession:
        """Open the endpoint of one rollout."""
        name = f"rollout-{next(self._numbers)}"
        return self.proxy.open_session(
            rollout_id=name,
            harness=Program(ComponentConfig()),
            limits=Limits(max_turns=1_000_000),
            folder=self._folder / name,
        )


@asynccontextmanager
async def open_site(words: Words, material: Material, folder: Path) -> AsyncIterator[Site]:
    """Start engine and proxy; both are stopped at the end."""
    words.tokenizer.save(str(folder / "tokenizer.json"))
    config = ScriptedConfig(turns=tuple(material.turns), tokenizer=str(folder), context=CONTEXT)
    engine = InstantEngine(config)
    await engine.start()
    proxy = Proxy(engine, ProxySettings())
    await proxy.start()
    try:
        yield Site(engine, proxy, folder)
    finally:
        await proxy.stop()
        await engine.stop()


class Client:
    """The least that an HTTP client can do, so that the latency is the proxy's."""

    def __init__(self, session: ProxySession) -> None:
        self._url = urlsplit(session.base_url)
        self._key = session.secret

    async def __aenter__(self) -> Client:
        host, port = str(self._url.hostname), self._url.port
        self._reader, self._writer = await asyncio.open_connection(host, port, limit=2**20)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, body: bytes) -> bytes:
        """Send a body and return the response's."""
        head = (
            f"POST {self._url.path}/v1/chat/completions HTTP/1.1\r\nhost: {self._url.netloc}\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not answer.startswith(b"http/1.1 200"):
            raise RuntimeError(answer.decode(errors="replace"))
        length = answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return await self._reader.readexactly(int(length))


async def latencies_ms(site: Site, material: Material) -> tuple[list[float], dict[int, bytes]]:
    """Play the conversation over HTTP; return each call's wall time and the bodies at the marks."""
    conversation, times, bodies = Conversation(material), [], {}
    session = site.session()
    async with Client(session) as client:
        for turn in range(MARKS[-1]):
            body = conversation.body()
            began = time.perf_counter()
            payload = await client.post(body)
            times.append((time.perf_counter() - began) * 1e3)
            if turn + 1 in MARKS:
                bodies[turn + 1] = body
            conversation.answered(payload, turn)
    check_bridged(session)
    await session.close()
    return times, bodies


async def own_cpu_ms(site: Site, material: Material) -> list[float]:
    """Play the conversation past HTTP; return each call's CPU time, all threads together."""
    conversation, times = Conversation(material), []
    session = site.session()
    for turn in range(MARKS[-1]):
        raw = conversation.body()
        body = session.reader.read(raw)
        chat = DIALECT.parse(body, session.seen[DIALECT.name])
        view = RequestView(headers={}, body=body)
        began = time.process_time()
        payload = await answer(session, chat, view, raw)
        times.append((time.process_time() - began) * 1e3)
        conversation.answered(payload, turn)
    check_bridged(session)
    await session.close()
    return times


async def answer(session: ProxySession, chat: ChatRequest, view: RequestView, raw: bytes) -> bytes:
    """Do what the proxy does between a parsed body and a response that was sent."""

    def encode(given: Any) -> bytes:
        return orjson.dumps(DIALECT.render(given, "policy", view.body))

    ticket = session.admit(Incoming(chat=chat, view=view, raw=raw, encode=encode))
    payload = encode(await ticket.task)
    session.delivered(ticket)
    return payload


def check_bridged(session: ProxySession) -> None:
    """Refuse to measure anything but a conversation that was continued all the way."""
    if any(call.fork or call.parent_call is None for call in session.calls[1:]):
        raise RuntimeError("the conversation was not continued")


def rerender_cpu_ms(renderer: ChatRenderer, body: bytes, repeats: int) -> float:
    """Return the CPU time of rendering and tokenising a whole prompt, the best of `repeats`."""
    chat = DIALECT.parse(orjson.loads(body))
    best_s = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        renderer.render(chat.messages, chat.tools)
        best_s = min(best_s, time.process_time() - began)
    return best_s * 1e3


async def litellm_cpu_ms(site: Site, bodies: dict[int, bytes]) -> dict[int, float] | None:
    """Return LiteLLM's CPU time per call at each mark; None, with a warning, without it."""
    session = site.session()
    upstream = Upstream(base_url=f"{session.base_url}/v1", key=session.secret)
    try:
        folder = await asyncio.to_thread(install)
        with tempfile.TemporaryDirectory() as work:
            async with running(folder, upstream, Path(work)) as proxy:
                return {mark: await proxy.cpu_ms(body) for mark, body in bodies.items()}
    except (NotInstalled, TimeoutError) as exc:
        log.warning("litellm_not_measured", reason=str(exc) or repr(exc))
        return None


def at_marks(plays: Sequence[Sequence[float]]) -> dict[int, float]:
    """Return each mark's median call of the best play: other work on the machine only adds."""
    return {mark: min(median(times[mark - WINDOW : mark]) for times in plays) for mark in MARKS}


def slowest(plays: Sequence[Sequence[float]]) -> dict[int, float]:
    """Return each mark's 99th percentile over all plays."""
    pooled = {mark: [ms for times in plays for ms in times[mark - WINDOW : mark]] for mark in MARKS}
    return {m: quantiles(times, n=100, method="inclusive")[-1] for m, times in pooled.items()}


async def measure(plays: int) -> dict[str, Any]:
    """Return all figures; milliseconds by turn."""
    words = Words()
    material = Material.of(words)
    with tempfile.TemporaryDirectory() as name:
        async with open_site(words, material, Path(name)) as site:
            walls, own = [], []
            for _ in range(plays):
                wall, bodies = await latencies_ms(site, material)
                walls.append(wall)
                own.append(await own_cpu_ms(site, material))
            renderer = ChatRenderer(site.engine.tokenizer)
            whole = {mark: rerender_cpu_ms(renderer, body, plays) for mark, body in bodies.items()}
            tokens = len(renderer.render(*_conversation(bodies[MARKS[-1]])))
            log.info("conversation", tokens=tokens, body_kb=len(bodies[MARKS[-1]]) // 1000)
            litellm = await litellm_cpu_ms(site, bodies)
    own_ms = at_marks(own)
    return {
        "p50_ms": at_marks(walls),
        "p99_ms": slowest(walls),
        "own_ms": own_ms,
        "growth": own_ms[MARKS[-1]] / own_ms[MARKS[0]],
        "cpu_ratio_vs_rerender": {mark: whole[mark] / own_ms[mark] for mark in MARKS},
        "litellm_cpu_ms": litellm,
    }


def _conversation(body: bytes) -> tuple[Any, Any]:
    chat = DIALECT.parse(orjson.loads(body))
    return chat.messages, chat.tools


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plays", type=int, default=5)
    args = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    result = asyncio.run(measure(args.plays))
    if args.json:
        print(json.dumps(result))
        return
    print(f"{'turn':<24}" + "".join(f"{mark:>9}" for mark in MARKS))
    for key, value in result.items():
        if isinstance(value, dict):
            print(f"{key:<24}" + "".join(f"{value[mark]:9.2f}" for mark in MARKS))
        else:
            print(f"{key:<24}{'-' if value is None else f'{value:9.2f}'}")


if __name__ == "__main__":
    main()
