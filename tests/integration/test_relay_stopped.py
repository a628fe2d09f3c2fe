"""What the bus can never carry stops the relay before it, loudly and rarely; it goes on by itself when it can.

On a real server, whose limits are changed as an operator would. Subjects and sizes that get here were accepted by
earlier releases: the control plane takes none of them any more.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs

from schemas import subjects
from services.bus import ensure_streams
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, MAX_PAYLOAD_BYTES
from services.eventlog.memory import MemoryLog
from services.eventlog.port import NewEvent
from services.eventlog.tail import Tail
from services.relay import relay as module
from services.relay.message import message_of
from services.relay.relay import Relay
from tests.plane import eventually
from worker.cancellation import end_tasks

LOOK_S = 0.05
LOOKS = 5
RAISED_BYTES = 4 * MAX_PAYLOAD_BYTES


class Bench:
    """A relay of its own over a log in memory, and a connection that looks on."""

    def __init__(self, server: NatsServer, relayed: Client, looking: Client) -> None:
        self.server, self.relayed, self.looking = server, relayed, looking
        self.log = MemoryLog()
        self.relay = Relay(relayed, Tail(self.log))

    async def append(self, *events: tuple[str, bytes]) -> None:
        epoch = (await self.log.leader()).epoch or await self.log.take_epoch("test") or 0
        await self.log.append([NewEvent(stream, 1, "node.enabled.v1", state) for stream, state in events], [], epoch)

    async def positions(self) -> list[int]:
        """Of what EVENTS holds, in its order."""
        js = self.looking.jetstream()
        info = await js.stream_info(subjects.STREAM_EVENTS)
        held = [await js.get_msg(subjects.STREAM_EVENTS, n) for n in range(1, info.state.last_seq + 1)]
        return [int((message.headers or {})[subjects.HEADER_POSITION]) for message in held]

    async def hold(self, positions: list[int]) -> None:
        async def held() -> bool:
            try:
                return await self.positions() == positions
            except (nats.errors.Error, nats.js.errors.Error):  # it is starting again
                return False

        await eventually(held, f"EVENTS holds {positions}")

    def state_over_by(self, over_bytes: int) -> bytes:
        """An event for `node-big` at position 2 whose message is as much over the server's limit; less, if negative."""
        bare = message_of(module.LogRow(2, "node-big", 1, "node.enabled.v1", b""), 1, 1).size_bytes
        return b"x" * (MAX_PAYLOAD_BYTES - bare + over_bytes)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(module, "LOOK_S", LOOK_S)
    monkeypatch.setattr(module, "CHECK_S", LOOK_S)
    server = NatsServer(tmp_path)
    await server.start()
    relayed = await nats.connect(server.url(CONTROL), max_reconnect_attempts=-1, reconnect_time_wait=LOOK_S)
    looking = await nats.connect(server.url(CONTROL), max_reconnect_attempts=-1, reconnect_time_wait=LOOK_S)
    await ensure_streams(looking)
    made = Bench(server, relayed, looking)
    await made.relay.start()
    yield made
    await relayed.close()
    await looking.close()
    await server.stop()


def stops(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["event"] == "relay.stopped"]


@pytest.mark.parametrize("ident", ["n1\n", "n 1", "", "*"])
async def test_an_event_that_no_subject_names_stops_the_relay_before_it(bench: Bench, ident: str) -> None:
    await bench.append(("node-a", b"{}"), (f"node-{ident}", b"{}"), ("node-b", b"{}"))
    with capture_logs() as logs:
        for _ in range(LOOKS):
            await bench.relay.step()
    assert await bench.positions() == [1]
    (line,) = stops(logs)  # once, however often it looked
    assert (line["log_level"], line["position"]) == ("error", 2)
    assert "relay-stopped.md" in line["advice"]
    assert [each["event"] for each in logs if each["log_level"] != "error"] == []  # the bus is not away
    assert bench.relayed.is_connected


async def test_that_it_has_stopped_is_said_again_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.0)
    await bench.append(("node-n 1", b"{}"))
    with capture_logs() as logs:
        for _ in range(LOOKS):
            await bench.relay.step()
    assert len(stops(logs)) == LOOKS


async def test_an_event_as_large_as_the_server_takes_goes_through(bench: Bench) -> None:
    await bench.append(("node-a", b"{}"), ("node-big", bench.state_over_by(0)), ("node-b", b"{}"))
    with capture_logs() as logs:
        await bench.relay.step()
    assert (await bench.positions(), logs) == ([1, 2, 3], [])


@pytest.mark.parametrize("restart", [False, True])
async def test_an_event_over_the_servers_limit_waits_until_that_is_raised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """The server would close the connection that brings it: one byte of it is too much, by the headers."""
    monkeypatch.setattr(module, "TELL_S", LOOKS * LOOK_S)
    await bench.append(("node-a", b"{}"), ("node-big", bench.state_over_by(1)), ("node-b", b"{}"))
    with capture_logs() as logs:
        running = asyncio.create_task(bench.relay.run())

        async def stopped() -> bool:
            return bool(stops(logs))

        await eventually(stopped, "the relay says that it has stopped")
        line = stops(logs)[0]
        assert (line["position"], line["size_bytes"]) == (2, MAX_PAYLOAD_BYTES + 1)
        assert str(MAX_PAYLOAD_BYTES) in line["reason"]
        assert await bench.positions() == [1]
        assert not bench.relayed.is_closed

        config = bench.server.config_file.read_text()
        before, after = f"max_payload: {MAX_PAYLOAD_BYTES}", f"max_payload: {RAISED_BYTES}"
        assert before in config
        bench.server.config_file.write_text(config.replace(before, after))
        if restart:
            await bench.server.stop()
            bench.server.child.start()
        else:
            bench.server.child.signal(signal.SIGHUP)
        await bench.hold([1, 2, 3])
        assert any(each["event"] == "relay.goes_on" for each in logs)
        await end_tasks([running])


async def test_an_event_over_the_streams_own_limit_waits_until_that_is_raised(bench: Bench) -> None:
    js = bench.looking.jetstream()
    config = (await js.stream_info(subjects.STREAM_EVENTS)).config
    await js.update_stream(config, max_msg_size=10_000)
    await bench.append(("node-a", b"{}"), ("node-big", b"x" * 10_000), ("node-b", b"{}"))
    with capture_logs() as logs:
        for _ in range(LOOKS):
            await bench.relay.step()
    assert await bench.positions() == [1]
    assert [line["position"] for line in stops(logs)] == [2]
    await js.update_stream(config, max_msg_size=-1)
    while await bench.positions() == [1]:
        await bench.relay.step()
    assert await bench.positions() == [1, 2, 3]
