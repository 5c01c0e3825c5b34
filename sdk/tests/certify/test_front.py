"""The relay in front of the proxy: faults that are real, and what it counts."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mixharness.certify.front import Front, Traffic
from mixharness.certify.situations import Fault
from mixharness.proxy.server import Server

pytestmark = pytest.mark.anyio

BODY = {"messages": [{"role": "user", "content": "hello"}]}


async def _answer(request: Request) -> Response:
    body = await request.json()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first "
        await asyncio.sleep(0.3)
        yield b"last"

    return StreamingResponse(chunks()) if body.get("stream") else Response(b"0123456789")


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    path = "/r/{name}/{secret}/v1/{rest:path}"
    server = Server(Starlette(routes=[Route(path, _answer, methods=["POST"])]))
    port = await server.start("127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}/r/one/secret"
    await server.stop()


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    front = Front()
    await front.start()
    yield front
    await front.stop()


async def post(url: str, path: str = "/v1/messages", **more: object) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(url + path, json=BODY | more)


async def test_requests_pass_and_are_counted(front: Front, upstream: str) -> None:
    traffic = Traffic(fault=None)
    url = front.lead(upstream, traffic)
    assert (await post(url)).content == b"0123456789"
    assert (await post(url, stream=True)).content == b"first last"
    assert (await post(url, "/v1/messages/count_tokens")).status_code == 200
    assert (await post(url, messages=[])).status_code == 200
    assert (traffic.requests, traffic.retries, traffic.struck) == (3, 1, False)


async def test_silence_is_measured_on_streams_only(front: Front, upstream: str) -> None:
    traffic = Traffic(fault=None)
    url = front.lead(upstream, traffic)
    await post(url)
    assert traffic.max_silence_s == 0.0
    await post(url, stream=True)
    assert 0.25 < traffic.max_silence_s < 5


async def test_one_request_is_answered_with_an_error(front: Front, upstream: str) -> None:
    traffic = Traffic(fault=Fault(at=1, status=429))
    url = front.lead(upstream, traffic)
    statuses = [await post(url) for _ in range(3)]
    assert [response.status_code for response in statuses] == [200, 429, 200]
    assert statuses[1].headers["retry-after"] == "1"
    assert traffic.struck


async def test_a_fault_of_streams_waits_for_one(front: Front, upstream: str) -> None:
    traffic = Traffic(fault=Fault(at=0, status=404, streams_only=True))
    url = front.lead(upstream, traffic)
    assert (await post(url)).status_code == 200
    assert (await post(url, stream=True)).status_code == 404


@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_is_cut_in_the_middle(front: Front, upstream: str, stream: bool) -> None:
    url = front.lead(upstream, Traffic(fault=Fault(at=0, cut=0.5)))
    with pytest.raises(httpx.RemoteProtocolError):
        await post(url, stream=stream)
    assert (await post(url, stream=stream)).status_code == 200


async def test_an_unknown_address_is_404(front: Front, upstream: str) -> None:
    url = front.lead(upstream, Traffic(fault=None))
    assert (await post(url.replace("/one/", "/two/"))).status_code == 404
