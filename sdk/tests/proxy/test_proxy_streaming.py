import time

import anyio
import pytest

from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.proxy.app import ProxySettings
from mixharness.types import Delivery

ASK = [{"role": "user", "content": "Go."}]


class HeldEngine(ScriptedEngine):
    """A scripted engine that samples when it is told to."""

    def __init__(self):
        super().__init__(ScriptedConfig(turns=("Done.",)))
        self.may_sample = anyio.Event()
        self.started = anyio.Event()
        self.cancelled_at = None
        self.requests = 0

    async def generate(self, request):
        self.requests += 1
        self.started.set()
        try:
            await self.may_sample.wait()
        except BaseException:
            self.cancelled_at = time.monotonic()
            raise
        return await super().generate(request)


class BrokenEngine(ScriptedEngine):
    async def generate(self, request):
        raise RuntimeError("out of memory")


class CountingClock:
    def __init__(self):
        self.events = []

    def pause(self):
        self.events.append("pause")

    def resume(self):
        self.events.append("resume")


@pytest.fixture
def held():
    return HeldEngine()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("dialect", "keep_alive"),
    [("chat", ": keep-alive"), ("anthropic", 'event: ping\ndata: {"type": "ping"}')],
)
async def test_keep_alives_come_while_sampling(open_site, held, dialect, keep_alive):
    settings = ProxySettings(keep_alive_s=0.02)
    async with open_site(engine=held, settings=settings) as site:
        path = "/v1/chat/completions" if dialect == "chat" else "/v1/messages"
        body = {"messages": ASK, "max_tokens": 9, "stream": True}
        url = site.session.base_url + path
        async with site.client.stream("POST", url, json=body) as response:
            assert response.status_code == 200
            received = ""
            async for part in response.aiter_text():
                received += part
                if received.count(keep_alive) >= 2:
                    held.may_sample.set()
        assert received.startswith(keep_alive)
        assert "Done." in received.split(keep_alive)[-1]


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_the_engine(open_site, held, stream):
    async with open_site(engine=held) as site:
        async with anyio.create_task_group() as group:
            group.start_soon(site.chat, {"messages": ASK, "stream": stream})
            await held.started.wait()
            left_at = time.monotonic()
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            while site.session.pending:
                await anyio.sleep(0.01)
        assert held.cancelled_at - left_at < 1
        (call,) = site.session.calls
        assert (call.delivery, call.sampled_ids) == (Delivery.CANCELLED, ())
        held.may_sample.set()
        await site.chat({"messages": ASK})
        assert site.session.calls[1].sampled_ids != ()
        assert site.session.calls[1].fork == ""


@pytest.mark.anyio
async def test_duplicate_in_flight_joins(open_site, held):
    async with open_site(engine=held) as site:
        answers = []

        async def ask(stream):
            answers.append(await site.chat({"messages": ASK, "stream": stream}))

        async with anyio.create_task_group() as group:
            group.start_soon(ask, True)
            await held.started.wait()
            group.start_soon(ask, False)
            while not site.session._duplicates:
                await anyio.sleep(0.01)
            held.may_sample.set()
        assert held.requests == 1
        assert all("Done." in answer.text for answer in answers)
        assert [call.duplicates for call in site.session.calls] == [1]


@pytest.mark.anyio
async def test_one_of_two_clients_may_leave(open_site, held):
    async with open_site(engine=held) as site:
        async with anyio.create_task_group() as group:
            leaving = anyio.CancelScope()

            async def ask_and_leave():
                with leaving:
                    await site.chat({"messages": ASK})

            group.start_soon(ask_and_leave)
            await held.started.wait()
            group.start_soon(site.chat, {"messages": ASK})
            while not site.session._duplicates:
                await anyio.sleep(0.01)
            leaving.cancel()
            await anyio.sleep(0.05)
            held.may_sample.set()
        assert site.session.calls[0].delivery is Delivery.DELIVERED


@pytest.mark.anyio
async def test_complete_duplicates_are_served_twice_then_sampled_anew(open_site):
    async with open_site("One.", "Two.") as site:
        texts = [(await site.chat({"messages": ASK})).text for _ in range(4)]
        assert ["One." in text for text in texts] == [True, True, True, False]
        first, anew = site.session.calls
        assert (first.duplicates, anew.duplicates) == (2, 0)
        assert anew.environment_ids == first.environment_ids
        assert anew.fork == ""


@pytest.mark.anyio
async def test_an_acknowledged_call_is_not_served_again(open_site):
    async with open_site("One.", "Two.", "Three.") as site:
        one = (await site.chat({"messages": ASK})).json()["choices"][0]["message"]
        await site.chat({"messages": [*ASK, one, *ASK]})
        assert "Three." in (await site.chat({"messages": ASK})).text


@pytest.mark.anyio
async def test_engine_error_is_told_and_noted(open_site):
    engine = BrokenEngine(ScriptedConfig(turns=("Done.",)))
    async with open_site(engine=engine) as site:
        response = await site.chat({"messages": ASK})
        assert response.status_code == 500
        assert response.headers["x-should-retry"] == "false"
        assert "RuntimeError: out of memory" in response.json()["error"]["message"]
        streamed = await site.chat({"messages": ASK, "stream": True})
        assert '"error"' in streamed.text
        assert [note.split(":")[0] for note in site.session.notes] == ["engine_error"] * 2


@pytest.mark.anyio
async def test_requests_are_held_while_the_gate_is_closed(open_site):
    clock = CountingClock()
    async with open_site("Done.", clock=clock) as site:
        async with anyio.create_task_group() as group, site.proxy.gate.closed():
            group.start_soon(site.chat, {"messages": ASK})
            while not site.session.pending:
                await anyio.sleep(0.005)
            await site.engine.load_weights(site.folder, 7)
            assert site.session.calls == ()
            assert clock.events == ["pause"]
        (call,) = site.session.calls
        assert call.held_s > 0
        assert call.versions[0].version == 7
        assert clock.events == ["pause", "resume"]


@pytest.mark.anyio
async def test_closing_cancels_what_is_sampled(open_site, held):
    async with open_site(engine=held) as site:
        responses = []

        async def ask():
            responses.append(await site.chat({"messages": ASK}))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await held.started.wait()
            await site.session.close()
        assert responses[0].status_code == 409
        assert site.session.calls[0].finish_reason == "cancelled"
        assert site.session.pending == 0
