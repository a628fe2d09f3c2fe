"""Round trips to a nats-server that stands still, goes on, and is restarted: the connection is never left deaf."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import nats
import pytest_asyncio
from nats.aio.client import Client

from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL
from worker.serving.round_trip import RoundTrips

WAIT_S = 20.0


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path)
    await made.start()
    yield made
    made.child.signal(signal.SIGCONT)
    await made.stop()


async def connected(server: NatsServer) -> Client:
    async def quietly(error: Exception) -> None:
        pass

    return await nats.connect(
        server.url(CONTROL), max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=quietly,
        inbox_prefix="_INBOX_CONTROL",
    )  # fmt: skip


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - nats-py sets no event
            await asyncio.sleep(0.01)


async def hears(client: Client) -> bool:
    heard = await client.subscribe("_INBOX_CONTROL.heard")
    await client.publish("_INBOX_CONTROL.heard", b"it")
    return (await heard.next_msg(timeout=WAIT_S)).data == b"it"


async def test_a_trip_that_comes_late_leaves_the_connection_sound(server: NatsServer) -> None:
    client = await connected(server)
    trip = RoundTrips(client)
    assert await trip()
    server.child.signal(signal.SIGSTOP)
    late = asyncio.create_task(trip())
    await asyncio.sleep(0)
    assert not await trip(), "one at a time: the bus does not answer"
    late.cancel()  # whoever asked has lost interest; the PONG still comes
    server.child.signal(signal.SIGCONT)
    assert await hears(client)
    assert await trip()
    await client.close()


async def test_trips_go_on_after_the_server_was_restarted(server: NatsServer) -> None:
    client = await connected(server)
    trip = RoundTrips(client)
    server.child.signal(signal.SIGSTOP)
    lost = asyncio.create_task(trip())
    await asyncio.sleep(0)
    server.child.signal(signal.SIGKILL)
    assert await server.child.wait(WAIT_S)
    await until(lambda: not client.is_connected)
    assert not await trip()
    await server.start()
    await until(lambda: client.is_connected)
    assert await trip()
    assert not await lost
    await client.close()
