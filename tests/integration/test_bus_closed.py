"""A service whose connection the server has ended for good ends too: nats-py reconnects after anything but that."""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors

from services.bus import connect
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL
from services.process import EXIT_BUS_CLOSED, Stop
from services.settings import Settings

WAIT_S = 20.0


async def test_a_service_ends_when_the_server_has_closed_its_connection(nats_server: NatsServer) -> None:
    stop = Stop()
    client = await connect(Settings(nats_url=nats_server.url(CONTROL)), "test", stop)
    with contextlib.suppress(nats.errors.Error):  # the server counts the headers, the client does not
        await client.publish("_INBOX_CONTROL.x", b"x" * client.max_payload, headers={"a": "b"})
    await asyncio.wait_for(stop.wait(), WAIT_S)
    assert stop.exit_code == EXIT_BUS_CLOSED
    assert client.is_closed


async def test_one_that_it_closes_itself_is_no_reason(nats_server: NatsServer) -> None:
    stop = Stop()
    client = await connect(Settings(nats_url=nats_server.url(CONTROL)), "test", stop)
    stop.set()
    await client.close()
    assert stop.exit_code == 0
