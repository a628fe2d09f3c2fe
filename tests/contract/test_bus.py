"""One suite for the real NATS server and for the simulated one: what Tenure relies on, and no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from schemas import subjects
from services.bus import ensure_streams
from tests.simulation.bus import SimBus, SimClient
from tests.simulation.loop import Process

WAIT_S = 10.0


class QuietNetwork:
    """No faults."""

    def delay_s(self) -> float:
        return 0.0005

    def copies(self, process: Any, subject: str) -> int:
        return 1

    def reorders(self) -> bool:
        return False

    def effect(self, process: Any, what: str) -> None:
        """Nothing happens."""


@pytest.fixture(params=["simulated", "nats-server"])
def url(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("nats_url") if request.param == "nats-server" else None


@pytest.fixture
async def clients(url: str | None) -> AsyncIterator[tuple[Any, Any]]:
    """Two connections to one server."""
    if url is None:
        bus = SimBus(asyncio.get_running_loop(), QuietNetwork())  # type: ignore[arg-type]
        both: tuple[Any, Any] = SimClient(bus, Process("a")), SimClient(bus, Process("b"))
    else:
        both = await nats.connect(url), await nats.connect(url)
    yield both
    for client in both:
        await client.close()


async def settled(client: Any) -> None:
    """Until the server has taken what was sent: the client's first PING may overtake what still waits to be sent."""
    await client.flush()
    await client.flush()


async def test_a_request_is_answered_by_who_listens(clients: tuple[Any, Any]) -> None:
    one, two = clients

    async def echo(message: Any) -> None:
        await message.respond(message.data + b"!")

    await two.subscribe("tenure.test.*", cb=echo)
    await settled(two)
    assert (await one.request("tenure.test.x", b"hello", timeout=WAIT_S)).data == b"hello!"


async def test_nobody_listening_is_told_at_once_and_silence_after_the_timeout(clients: tuple[Any, Any]) -> None:
    one, two = clients
    with pytest.raises(nats.errors.NoRespondersError):
        await one.request("tenure.test.nobody", b"", timeout=WAIT_S)

    async def silent(message: Any) -> None:
        """Says nothing."""

    await two.subscribe("tenure.test.silent", cb=silent)
    await settled(two)
    with pytest.raises(nats.errors.TimeoutError):
        await one.request("tenure.test.silent", b"", timeout=0.2)


async def test_messages_of_one_connection_keep_their_order(clients: tuple[Any, Any]) -> None:
    one, two = clients
    got: list[bytes] = []
    complete = asyncio.Event()

    async def take(message: Any) -> None:
        got.append(message.data)
        if len(got) == 50:
            complete.set()

    await two.subscribe("tenure.test.>", cb=take)
    await settled(two)
    for number in range(50):
        await one.publish(f"tenure.test.{number}", str(number).encode())
    await asyncio.wait_for(complete.wait(), WAIT_S)
    assert got == [str(number).encode() for number in range(50)]


async def test_streams_are_made_once(clients: tuple[Any, Any]) -> None:
    one, two = clients
    await asyncio.gather(ensure_streams(one), ensure_streams(two))
    await ensure_streams(one)
    names = {info.config.name for info in await one.jetstream().streams_info()}
    assert names == {"COMMANDS", "EVENTS", "WORK", "EVIDENCE"}
    with pytest.raises(nats.js.errors.NotFoundError):
        await one.jetstream().stream_info("NOTHING")


async def test_a_message_that_expects_another_sequence_is_refused_and_so_are_its_followers(
    clients: tuple[Any, Any],
) -> None:
    one, _ = clients
    await ensure_streams(one)
    js, subject = one.jetstream(), f"{subjects.EVT}.node.n.x"
    expected = "Nats-Expected-Last-Sequence"
    assert (await js.publish(subject, b"1", headers={expected: "0"})).seq == 1
    for sequence in ("0", "5"):
        with pytest.raises(nats.js.errors.APIError):
            await js.publish(subject, b"no", headers={expected: sequence})
    await one.publish(subject, b"2", headers={expected: "1"})  # without a reply: nobody is told
    assert (await js.publish(subject, b"3", headers={expected: "2"})).seq == 3
    info = await js.stream_info(subjects.STREAM_EVENTS)
    assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (3, 1, 3)
    assert [(await js.get_msg(subjects.STREAM_EVENTS, n)).data for n in (1, 2, 3)] == [b"1", b"2", b"3"]


async def test_a_purge_keeps_the_last_sequence(clients: tuple[Any, Any]) -> None:
    one, _ = clients
    await ensure_streams(one)
    js = one.jetstream()
    await js.publish(f"{subjects.EVT}.node.n.x", b"1")
    await js.purge_stream(subjects.STREAM_EVENTS)
    info = await js.stream_info(subjects.STREAM_EVENTS)
    assert (info.state.messages, info.state.last_seq) == (0, 1)


async def test_a_work_queue_keeps_a_message_until_it_is_acknowledged(clients: tuple[Any, Any]) -> None:
    one, two = clients
    await ensure_streams(one)
    await one.jetstream().publish(f"{subjects.CMD}.node.enrol", b"work")
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=1)
    pull = await two.jetstream().pull_subscribe(
        f"{subjects.CMD}.>", durable="test", stream=subjects.STREAM_COMMANDS, config=config
    )
    assert [message.data for message in await pull.fetch(10, timeout=WAIT_S)] == [b"work"]
    (again,) = await pull.fetch(10, timeout=WAIT_S)  # not acknowledged within the ack wait
    await again.nak()
    (last,) = await pull.fetch(10, timeout=WAIT_S)
    await last.ack()
    await settled(two)
    with pytest.raises(TimeoutError):
        await pull.fetch(10, timeout=1.5)
    assert (await one.jetstream().stream_info(subjects.STREAM_COMMANDS)).state.messages == 0


async def test_the_work_stream_keeps_the_last_offer_of_each_item(clients: tuple[Any, Any]) -> None:
    one, _ = clients
    await ensure_streams(one)
    js = one.jetstream()
    for body in (b"first", b"second"):
        await js.publish(subjects.work_subject("n1", "w1"), body)
    await js.publish(subjects.work_subject("n1", "w2"), b"other")
    assert (await js.stream_info(subjects.STREAM_WORK)).state.messages == 2


async def test_a_lost_consumer_is_noticed(clients: tuple[Any, Any]) -> None:
    one, two = clients
    await ensure_streams(one)
    pull = await two.jetstream().pull_subscribe(
        f"{subjects.CMD}.>", durable="test", stream=subjects.STREAM_COMMANDS, config=ConsumerConfig()
    )
    await one.jetstream().publish(f"{subjects.CMD}.node.enrol", b"work")
    assert (await pull.consumer_info()).num_pending == 1  # what nobody has taken yet
    if isinstance(one, SimClient):
        one.bus.wipe()
    else:
        await one.jetstream().delete_stream(subjects.STREAM_COMMANDS)
    with contextlib.suppress(nats.errors.TimeoutError), pytest.raises(nats.js.errors.NotFoundError):
        await pull.consumer_info()
