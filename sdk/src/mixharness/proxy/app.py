"""The proxy's HTTP server: routes, keys and error shapes (TOKENS_AND_TREES 1.1).

Calls are made in session.py; how a call's answer travels is streaming.py's.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mixharness.engine import InferenceEngine
from mixharness.harness import Harness, RequestView
from mixharness.proxy.admission import (
    Incoming,
    Overflow,
    Pausable,
    ProxySettings,
    Rejected,
    Serving,
    SessionSpec,
)
from mixharness.proxy.budget import Exhausted
from mixharness.proxy.chat import Answer
from mixharness.proxy.dialects import BadRequest, Dialect
from mixharness.proxy.dialects.anthropic_messages import AnthropicMessages
from mixharness.proxy.dialects.openai_chat import OpenAIChat
from mixharness.proxy.dialects.openai_responses import OpenAIResponses
from mixharness.proxy.gate import Gate
from mixharness.proxy.renderer import ChatRenderer
from mixharness.proxy.server import Server
from mixharness.proxy.session import ProxySession
from mixharness.proxy.streaming import Exchange
from mixharness.types import Limits, ModelCall

__all__ = ["Pausable", "Proxy", "ProxySession", "ProxySettings"]

log = structlog.get_logger()

_ANTHROPIC, _CHAT, _RESPONSES = AnthropicMessages(), OpenAIChat(), OpenAIResponses()
# The short paths are for a base URL that ends in /v1 already, or needs none.
_ENDPOINTS: tuple[tuple[str, Dialect], ...] = (
    (_ANTHROPIC.path, _ANTHROPIC),
    (_CHAT.path, _CHAT),
    ("/chat/completions", _CHAT),
    (_RESPONSES.path, _RESPONSES),
    ("/responses", _RESPONSES),
)
_COUNTS: tuple[tuple[str, Dialect, Mapping[str, Any]], ...] = (
    ("/v1/messages/count_tokens", _ANTHROPIC, {}),
    ("/v1/responses/input_tokens", _RESPONSES, {"object": "response.input_tokens"}),
    ("/responses/input_tokens", _RESPONSES, {"object": "response.input_tokens"}),
)
_MODEL = {
    "id": "policy",
    "type": "model",
    "object": "model",
    "display_name": "policy",
    "created": 0,
    "created_at": "1970-01-01T00:00:00Z",
    "lifecycle": "active",
    "owned_by": "mixharness",
}
"""The one model, with the fields of all dialects."""


class Proxy:
    """Serves model calls of many rollouts on one port, in the event loop it is started in.

    Attributes:
        gate: where requests wait while the trainer updates the weights.
        app: the ASGI application that `start` serves.
    """

    def __init__(self, engine: InferenceEngine[Any], settings: ProxySettings) -> None:
        self.gate = Gate()
        self._engine, self._settings = engine, settings
        self._sessions: dict[str, ProxySession] = {}
        self._ended: set[str] = set()
        self.app = _routes(self)
        self._server = Server(self.app)
        self._address = ""
        self._serving: Serving | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Start serving and return the port; the engine has been started. 0 takes a free one.

        Raises:
            TemplateError: the engine's chat template cannot be served.
            ConfigError: the address cannot be taken.
        """
        renderer = ChatRenderer(self._engine.tokenizer)
        port = await self._server.start(host, port)
        self._address = f"http://{host}:{port}"
        self._serving = Serving(
            engine=self._engine, renderer=renderer, gate=self.gate, settings=self._settings
        )
        log.info("proxy_started", address=self._address)
        return port

    async def stop(self) -> None:
        """Close all sessions and stop serving; may be called twice."""
        for session in self._sessions.values():
            await session.close()
        await self._server.stop()

    def open_session(
        self,
        *,
        rollout_id: str,
        harness: Harness[Any],
        limits: Limits,
        folder: Path,
        clock: Pausable | None = None,
    ) -> ProxySession:
        """Open the model endpoint of one rollout; `ProxySession.close` ends it.

        Args:
            rollout_id: unique among open sessions.
            harness: whose rules and hints apply.
            limits: `max_turns` and `tokens` are enforced here.
            folder: gets `calls.jsonl` and `bodies.zst`.
            clock: stands still while a request is held or sampled.

        Raises:
            RuntimeError: the proxy was not started.
            ValueError: such a session is open.
        """
        if self._serving is None:
            raise RuntimeError("the proxy is not started")
        self._forget_closed()
        name = _session_name(rollout_id)
        if name in self._sessions:
            raise ValueError(f"a session of rollout {rollout_id!r} is open")
        secret = secrets.token_urlsafe(24)
        spec = SessionSpec(
            rollout_id=rollout_id,
            harness=harness,
            limits=limits,
            folder=folder,
            base_url=f"{self._address}/r/{name}/{secret}",
            secret=secret,
            clock=clock,
        )
        self._sessions[name] = ProxySession(self._serving, spec)
        return self._sessions[name]

    def calls_of(self, rollout_id: str) -> tuple[ModelCall, ...]:
        """Return what an open session has recorded so far; nothing where none is open."""
        session = self._sessions.get(_session_name(rollout_id))
        return () if session is None or session.closed else session.calls

    def find(self, name: str, secret: str, key: str) -> ProxySession:
        """Return the session a request belongs to (rule 11).

        Raises:
            Rejected: there is none, it has ended, or path or key is not this rollout's.
        """
        session = self._sessions.get(name)
        if session is None:
            ended = name in self._ended
            if ended:
                log.warning("late_call", rollout=name)
            raise Rejected(409 if ended else 404, "this rollout has ended" if ended else "unknown")
        for given, status in ((secret, 403), (key, 401)):
            if not hmac.compare_digest(given.encode(), session.secret.encode()):
                session.notes.append("foreign_call: a request without this rollout's key")
                log.warning("foreign_call", rollout=session.rollout_id, status=status)
                raise Rejected(status, "the key of this rollout is wanted, in path and header")
        return session

    async def serve(self, request: Request, dialect: Dialect) -> Response:
        """Answer one model request."""
        try:
            session, body, raw = await self._read(request, dialect)
            chat = dialect.parse(body, session.seen[dialect.name])
            encode = _encoder(dialect, body, stream=chat.stream)
            view = RequestView(headers=dict(request.headers), body=body)
            ticket = session.admit(Incoming(chat=chat, view=view, raw=raw, encode=encode))
        except (Rejected, BadRequest, Overflow, Exhausted) as exc:
            return _refusal(dialect, exc)
        keep_alive_s = self._settings.keep_alive_s if chat.stream else None
        return Exchange(session, ticket, dialect, encode, keep_alive_s)

    async def count_tokens(
        self, request: Request, dialect: Dialect, more: Mapping[str, Any]
    ) -> Response:
        """Answer with the length of the very prompt the engine would get (1.10)."""
        try:
            session, body, _ = await self._read(request, dialect)
            tokens = session.count_tokens(dialect.parse(body))
        except (Rejected, BadRequest) as exc:
            return _refusal(dialect, exc)
        return JSONResponse({"input_tokens": tokens, **more})

    async def _read(
        self, request: Request, dialect: Dialect
    ) -> tuple[ProxySession, dict[str, Any], bytes]:
        """Return a request's session, its body as JSON, and the raw bytes."""
        path, key = request.path_params, dialect.api_key(request.headers)
        session = self.find(path["rollout"], path["secret"], key)
        raw = await request.body()
        return session, session.reader.read(raw), raw

    def _forget_closed(self) -> None:
        for name in [name for name, session in self._sessions.items() if session.closed]:
            del self._sessions[name]
            self._ended.add(name)


def _session_name(rollout_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", rollout_id)


def _routes(proxy: Proxy) -> Starlette:
    root = "/r/{rollout}/{secret}"
    posts = [(path, partial(_serve, proxy, dialect)) for path, dialect in _ENDPOINTS]
    posts += [(path, partial(_count, proxy, dialect, more)) for path, dialect, more in _COUNTS]
    probes = [Route(root + path, _hello) for path in ("", "/", "/v1", "/api/hello")]
    models = [Route(root + path, _models) for path in ("/v1/models", "/models")]
    model = [Route(route.path + "/{model:path}", _model) for route in models]
    return Starlette(
        routes=[Route(root + path, call, methods=["POST"]) for path, call in posts]
        + [*models, *model, *probes],
        exception_handlers={HTTPException: _no_such_route},
    )


async def _serve(proxy: Proxy, dialect: Dialect, request: Request) -> Response:
    return await proxy.serve(request, dialect)


async def _count(
    proxy: Proxy, dialect: Dialect, more: Mapping[str, Any], request: Request
) -> Response:
    return await proxy.count_tokens(request, dialect, more)


async def _hello(request: Request) -> Response:
    """Answer the probes that programs send before they start; says nothing about any rollout."""
    return Response(status_code=200)


async def _models(request: Request) -> Response:
    """List the one model."""
    ends = {"first_id": _MODEL["id"], "last_id": _MODEL["id"], "has_more": False}
    return JSONResponse({"object": "list", "data": [_MODEL], **ends})


async def _model(request: Request) -> Response:
    """Describe the one model under whatever name a program was given for it."""
    name = request.path_params["model"]
    return JSONResponse(_MODEL | {"id": name, "display_name": name})


async def _no_such_route(request: Request, exc: Exception) -> Response:
    """Refuse an unknown path or method, with the fields of all dialects."""
    status, detail = (exc.status_code, exc.detail) if isinstance(exc, HTTPException) else (500, "")
    body = _ANTHROPIC.error(status, f"{request.method} {request.url.path}: {detail}")
    body["error"] |= {"param": None, "code": None}
    return JSONResponse(body, status_code=status)


def _encoder(
    dialect: Dialect, body: Mapping[str, Any], *, stream: bool
) -> Callable[[Answer], bytes]:
    model = str(body.get("model") or "policy")
    if stream:
        return lambda answer: b"".join(dialect.events(answer, model, body))
    return lambda answer: orjson.dumps(dialect.render(answer, model, body))


def _refusal(dialect: Dialect, exc: Rejected | BadRequest | Overflow | Exhausted) -> Response:
    if isinstance(exc, Overflow):
        status, body = dialect.overflow(exc.prompt_tokens, exc.limit)
        return JSONResponse(body, status_code=status)
    if isinstance(exc, Exhausted):
        status = dialect.end_status
    else:
        status = exc.status if isinstance(exc, Rejected) else 400
    return JSONResponse(dialect.error(status, str(exc)), status_code=status)
