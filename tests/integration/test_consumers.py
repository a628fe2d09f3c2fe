"""The pull consumers of worker and control plane: made again whatever took them away, and nothing is done twice.

A consumer can go without a word: deleted by somebody, gone with its stream, or with the store of a server that comes
back empty. Its reader notices by itself, within one fetch. What a message asks for may take longer than the server
waits for an acknowledgement; it is delivered again then, and has one outcome all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import nats.js.errors
import psycopg
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from schemas import subjects
from schemas.work import Offer
from services.bus import ensure_streams
from services.cli.doctor.progress import readers_check
from services.client import Client as TenureClient
from services.control import durable
from services.control.durable import DurableReader
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, node_user
from services.settings import Settings
from tests.plane import ControlPlane, control_plane, eventually
from worker.cancellation import end_tasks
from worker.duty import offers
from worker.duty.offers import OfferReader

HELD_UP_S = 600
NODE = "n1"
SHA = "ab" * 32
FETCH_S = 1.0


class Bench:
    """A server of its own, a connection that looks on, and what the reader under test has taken."""

    def __init__(self, server: NatsServer, client: Client) -> None:
        self.server, self.client = server, client
        self.taken: list[str] = []

    async def consumer_deleted(self, stream: str, consumer: str) -> None:
        assert await self.client.jetstream().delete_consumer(stream, consumer)

    async def stream_made_again(self, stream: str, consumer: str) -> None:
        assert await self.client.jetstream().delete_stream(stream)
        await ensure_streams(self.client)

    async def server_back_empty(self, stream: str, consumer: str) -> None:
        await self.server.stop()
        shutil.rmtree(self.server.store_dir)
        await self.server.start()

        async def made() -> bool:
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError):
                await ensure_streams(self.client)
                return True
            return False

        await eventually(made, "the streams are made again")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    server = NatsServer(tmp_path)
    await server.start()
    await server.add_node(NODE)
    client = await connect(server.url(CONTROL))
    await ensure_streams(client)
    yield Bench(server, client)
    await client.close()
    await server.stop()


async def connect(url: str, **options: Any) -> Client:
    async def unheard(error: Exception) -> None:
        """Losing the connection is what the test is about."""

    return await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=unheard, **options)


@contextlib.asynccontextmanager
async def running(step: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(step())
    try:
        yield
    finally:
        await end_tasks([task])


async def published(bench: Bench, subject: str, body: bytes, ident: str) -> None:
    """Publish until it is acknowledged, then wait until the reader has taken it."""
    await bench.client.jetstream().publish(subject, body)

    async def taken() -> bool:
        return ident in bench.taken

    await eventually(taken, f"{ident} is taken")


FAULTS = ("consumer_deleted", "stream_made_again", "server_back_empty")


@pytest.mark.parametrize("fault", FAULTS)
async def test_offers_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(offers, "FETCH_SECONDS", FETCH_S)

    def take(offer: Offer) -> bool:
        bench.taken.append(offer.work_id)
        return True

    login = bench.server.url(node_user(NODE))
    client = await connect(login, inbox_prefix=subjects.node_inbox(NODE).encode())
    reader = OfferReader(client, NODE, take)
    async with running(reader.run):
        for work_id in ("before", "after"):
            body = msgspec.json.encode(Offer(work_id, NODE, "verify", 1))
            await published(bench, subjects.work_subject(NODE, work_id), body, work_id)
            if work_id == "before":
                await getattr(bench, fault)(subjects.STREAM_WORK, subjects.work_consumer(NODE))
    await client.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_durable_commands_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(durable, "WAIT_S", FETCH_S)

    async def handle(message: Msg) -> None:
        bench.taken.append(message.data.decode())
        await message.ack()

    client = await connect(bench.server.url(CONTROL))
    reader = DurableReader(client, subjects.STREAM_COMMANDS, f"{subjects.CMD}.>", handle, lambda: True)
    async with running(reader.run):
        for ident in ("before", "after"):
            await published(bench, f"{subjects.CMD}.node.enrol", ident.encode(), ident)
            if ident == "before":
                await getattr(bench, fault)(subjects.STREAM_COMMANDS, durable.CONSUMER)
    await client.close()


async def test_a_consumer_that_gives_nothing_is_an_alarm(
    plane: ControlPlane, nats_operator_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server holds the consumer up: it is there, its reader asks, something waits, and nothing comes."""
    monkeypatch.setattr(durable, "WAIT_S", FETCH_S)
    settings = Settings(nats_url=nats_operator_url, postgres_dsn=plane.dsn)
    js, ident = plane.nc.jetstream(), "held-up"

    async def there() -> bool:
        with contextlib.suppress(nats.js.errors.NotFoundError):
            return bool(await js.consumer_info(subjects.STREAM_COMMANDS, durable.CONSUMER))
        return False

    await eventually(there, "the control plane has its consumer")
    async with await TenureClient.connect(settings, "test") as client:
        assert (await readers_check(client, [])).status == "ok"
        with capture_logs() as said:
            await held_up(plane.nc, HELD_UP_S)
            body = {"command_id": ident, "actor": "t", "node_id": "n1", "credential_sha256": SHA}
            await js.publish(f"{subjects.CMD}.node.enrol", msgspec.json.encode(body))
            check = await readers_check(client, [])

            async def told() -> bool:
                return any(line["event"] == "bus.no_progress" and line["waiting"] == 1 for line in said)

            await eventually(told, "the control plane's log says that it gets nothing")
        assert (check.status, check.found) == ("failed", "COMMANDS: 1 wait and the control plane took none in 2 s")
        await held_up(plane.nc, 0)

        async def receipted() -> bool:
            return bool(await plane.log.receipts([ident]))

        await eventually(receipted, "the command is carried out")
        assert (await readers_check(client, [])).status == "ok"


async def held_up(client: Client, seconds: int) -> None:
    """Have the server give nothing to the control plane's reader of COMMANDS for that long; 0 ends it."""
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat() if seconds else None
    subject = f"$JS.API.CONSUMER.PAUSE.{subjects.STREAM_COMMANDS}.{durable.CONSUMER}"
    answer = await client.request(subject, msgspec.json.encode({"pause_until": until} if until else {}), timeout=5)
    assert "error" not in msgspec.json.decode(answer.data), answer.data


async def test_an_offer_is_acknowledged_when_it_is_taken_up_not_when_the_work_is_done(bench: Bench) -> None:
    """So there is no ack wait that the work could outlast: the lease keeps it from being forgotten."""
    client = await connect(bench.server.url(node_user(NODE)), inbox_prefix=subjects.node_inbox(NODE).encode())
    begun = asyncio.Event()

    def take(offer: Offer) -> bool:
        begun.set()  # and the work goes on for as long as it takes
        return True

    async with running(OfferReader(client, NODE, take).run):
        body = msgspec.json.encode(Offer("w1", NODE, "verify", 1))
        await bench.client.jetstream().publish(subjects.work_subject(NODE, "w1"), body)
        await asyncio.wait_for(begun.wait(), 10)

        async def acknowledged() -> bool:
            found = await bench.client.jetstream().consumer_info(subjects.STREAM_WORK, subjects.work_consumer(NODE))
            return (found.num_ack_pending, found.num_pending, found.ack_floor.stream_seq) == (0, 0, 1)

        await eventually(acknowledged, "the server has nothing to deliver again")
    await client.close()


@pytest.fixture
async def plane(postgres_dsn: str, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ControlPlane]:
    monkeypatch.setattr(durable, "ACK_WAIT_S", 1)
    async with control_plane(postgres_dsn, nats_url) as made:
        yield made


async def test_a_command_that_outlasts_the_ack_wait_has_one_outcome(plane: ControlPlane) -> None:
    body = {"command_id": "c1", "actor": "t", "node_id": "n1", "credential_sha256": SHA}
    js = plane.nc.jetstream()
    async with await psycopg.AsyncConnection.connect(plane.dsn) as holding:
        await holding.execute("LOCK TABLE tenure.stored_events IN EXCLUSIVE MODE")
        await js.publish(f"{subjects.CMD}.node.enrol", msgspec.json.encode(body))

        async def delivered_again() -> bool:
            found = await js.consumer_info(subjects.STREAM_COMMANDS, durable.CONSUMER)
            return bool(found.num_redelivered)

        await eventually(delivered_again, "the command is delivered again while it is being decided")
        await holding.rollback()

    async def taken() -> bool:
        return (await js.stream_info(subjects.STREAM_COMMANDS)).state.messages == 0

    await eventually(taken, "the command has left the stream")
    assert (await plane.log.receipts(["c1"])).keys() == {"c1"}
    assert [row.stream for row in await plane.log.read(0, 10)] == ["node-n1"]
