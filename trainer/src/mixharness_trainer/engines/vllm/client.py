"""One vLLM server over HTTP: token ids in, token ids and log-probs out.

Only the token-in/token-out endpoint samples; vLLM's chat endpoints are never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from mixharness.engine import GenerateRequest, Generation
from mixharness.errors import EngineError
from mixharness.types import VersionSpan

_CONNECT_S = 10.0
_HEALTH_S = 10.0
_NO_LOGPROB = -9000.0
"""vLLM sends -9999 for a token whose log-prob it does not know."""
BASE_MODEL = "policy"
"""The name under which a server's own weights are asked for."""
_FINISH = {"stop": "stop", "length": "length", "abort": "cancelled"}


class ServerLost(EngineError):
    """The server does not answer any more; another one may."""


def address_of(url: str) -> tuple[str, str | None]:
    """Return base URL and socket path of `http://host:port` or `unix:/path`."""
    if url.startswith("unix:"):
        return "http://vllm", url.removeprefix("unix:")
    return url.rstrip("/"), None


class VllmClient:
    """The routes of one server. Belongs to one event loop."""

    def __init__(self, url: str) -> None:
        self.url = url
        base_url, socket_path = address_of(url)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(
            base_url=base_url,
            transport=httpx.AsyncHTTPTransport(uds=socket_path, limits=limits),
            timeout=httpx.Timeout(None, connect=_CONNECT_S),  # a request may wait its turn
        )

    async def healthy(self) -> bool:
        """Say whether the server and its engine process answer."""
        try:
            response = await self._http.get("/health", timeout=_HEALTH_S)
        except httpx.HTTPError:
            return False
        return response.status_code == httpx.codes.OK

    async def context(self) -> int:
        """Return the longest prompt plus completion, in tokens.

        Raises:
            EngineError: the server does not say.
        """
        models = await self._call("GET", "/v1/models")
        return int(models["data"][0]["max_model_len"])

    async def sample(
        self, request: GenerateRequest, max_tokens: int, model: str = BASE_MODEL
    ) -> Generation:
        """Sample one completion; closing the connection frees the server.

        Versions are those of the server's own weights, whatever adapter `model` names.

        Raises:
            ServerLost: the server does not answer any more.
            EngineError: it refused, or answered with what breaks the contract.
        """
        body = {
            "model": model,
            "request_id": request.request_id,
            "token_ids": request.prompt_ids,
            "sampling_params": {
                "temperature": request.sampling.temperature,
                "max_tokens": max_tokens,
                "stop_token_ids": request.sampling.stop_ids,
                "ignore_eos": True,  # only the stop ids stop
                "logprobs": 0,  # of the sampled token alone
                "detokenize": False,
            },
        }
        answer = await self.post("/inference/v1/generate", body)
        return read_generation(answer, request.request_id)

    async def abort(self, request_id: str) -> None:
        """End a request of `sample`, which then returns what was sampled so far."""
        await self.post(
            "/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-{request_id}"]}
        )

    async def post(self, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """Call a route.

        Raises:
            ServerLost: the server does not answer any more.
            EngineError: it answered with an error.
        """
        content = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        return await self._call("POST", path, content=content, headers=headers, **options)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.HTTPError as exc:
            raise ServerLost(f"vLLM at {self.url} does not answer {path}: {exc!r}") from exc
        if response.is_server_error and not await self.healthy():
            raise ServerLost(f"the engine of vLLM at {self.url} has died")
        if response.is_error:
            raise EngineError(f"vLLM at {self.url} refused {path}: {_error_text(response.content)}")
        said = response.headers.get("content-type", "").startswith("application/json")
        return orjson.loads(response.content) if said and response.content else {}


def _error_text(content: bytes) -> str:
    try:
        found = orjson.loads(content)
        error = found.get("error", found.get("detail"))
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, AttributeError, KeyError):
        return content.decode(errors="replace")[:500]


def read_generation(answer: Mapping[str, Any], request_id: str) -> Generation:
    """Return what an answer of the token endpoint holds.

    Raises:
        EngineError: ids, log-probs and versions do not belong together (rule 1).
    """
    (choice,) = answer["choices"]
    ids = tuple(choice["token_ids"] or ())
    entries = choice["logprobs"]["content"] if choice["logprobs"] else ()
    spans = choice["weight_versions"] or ()
    if tuple(entry["token_id"] for entry in entries) != ids:
        raise EngineError(
            f"vLLM gave {len(entries)} log-probs for {len(ids)} ids in request {request_id}, or in "
            "another order; one for each is right"
        )
    if any(entry["logprob"] <= _NO_LOGPROB for entry in entries):
        raise EngineError(f"vLLM does not know a log-prob of request {request_id}")
    if any(not span["version"].isdecimal() for span in spans):
        raise ServerLost(f"vLLM started anew and has no weights of ours: {spans}")
    if [i for span in spans for i in range(span["start"], span["end"])] != list(range(len(ids))):
        raise EngineError(
            f"vLLM does not say which weights sampled each token of request {request_id}: "
            f"{spans} for {len(ids)} ids"
        )
    finish_reason = _FINISH.get(choice["finish_reason"])
    if finish_reason is None or (not ids and finish_reason != "cancelled"):
        raise EngineError(f"vLLM ended request {request_id} with {choice['finish_reason']!r}")
    return Generation(
        ids=ids,
        logprobs=tuple(float(entry["logprob"]) for entry in entries),
        versions=tuple(VersionSpan(int(s["version"]), s["start"], s["end"]) for s in spans),
        finish_reason=finish_reason,
    )
