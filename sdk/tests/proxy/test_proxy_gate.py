import anyio
import pytest

from mixharness.proxy.gate import Gate


@pytest.mark.anyio
async def test_closing_waits_for_what_is_in_flight():
    gate, order = Gate(), []
    inside, leave = anyio.Event(), anyio.Event()

    async def call():
        async with gate.pass_() as held_s:
            assert held_s < 0.05
            inside.set()
            await leave.wait()
            order.append("call")

    async def update():
        async with gate.closed():
            order.append("update")

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await inside.wait()
        group.start_soon(update)
        await anyio.sleep(0)
        leave.set()
    assert order == ["call", "update"]


@pytest.mark.anyio
async def test_new_requests_are_held_and_counted():
    gate, held = Gate(), []

    async def call():
        async with gate.pass_() as held_s:
            held.append(held_s)

    async with anyio.create_task_group() as group, gate.closed():
        group.start_soon(call)
        await anyio.sleep(0.02)
        assert held == []
    assert held[0] >= 0.015
    assert gate.held_s == pytest.approx(held[0])


@pytest.mark.anyio
async def test_without_drain_calls_in_flight_go_on():
    gate = Gate()
    async with gate.pass_(), gate.closed(drain=False):
        pass
    async with gate.closed():
        pass


@pytest.mark.anyio
async def test_a_held_request_can_be_cancelled():
    gate = Gate()
    async with gate.closed():
        with anyio.move_on_after(0.01) as scope:
            async with gate.pass_():
                pytest.fail("passed a closed gate")
        assert scope.cancelled_caught
    async with gate.closed():
        pass
