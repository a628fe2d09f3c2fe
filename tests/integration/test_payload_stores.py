"""Payloads by reference on a real server, between a person's login and a node's: what fits through, and what does not.

A node's worker may write its own store and read single messages of it, nothing else; see `services.embedded.nats_conf`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig

from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.serving import ByReference, payload_store
from services.client.nats_wire import NatsWire
from services.client.wire import Unreachable
from services.control.payloads import PayloadStores
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import OPERATOR, node_user
from worker.serving.references import References

NODES = ("n1", "n2")
LARGE = 3 * 1024 * 1024 + 1


class Desk:
    """A control plane's, a person's and two workers' connections; `refused` is what the server refused each."""

    def __init__(self, control: Client, person: NatsWire, workers: dict[str, Client], refused: dict[str, list[str]]):
        self.control, self.person, self.workers, self.refused = control, person, workers, refused


@pytest_asyncio.fixture
async def desk(nats_server: NatsServer, nats_url: str) -> AsyncIterator[Desk]:
    for node_id in NODES:
        await nats_server.add_node(node_id)
    control = await nats.connect(nats_url)
    await control.jetstream().add_stream(StreamConfig(name=subjects.STREAM_COMMANDS, subjects=[f"{subjects.CMD}.>"]))
    await PayloadStores(control, lambda: NODES).step()
    refused: dict[str, list[str]] = {node_id: [] for node_id in NODES}
    workers = {node_id: await _worker(nats_server, node_id, refused[node_id]) for node_id in NODES}
    person = await NatsWire.connect(nats_server.address, OPERATOR, nats_server.password(OPERATOR), "test")
    yield Desk(control, person, workers, refused)
    await person.close()
    for client in (*workers.values(), control):
        await client.close()


async def _worker(server: NatsServer, node_id: str, refused: list[str]) -> Client:
    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    inbox = subjects.node_inbox(node_id)
    return await nats.connect(server.url(node_user(node_id)), error_cb=on_error, inbox_prefix=inbox)


def reference(name: str, body: bytes) -> ByReference:
    return ByReference(name, len(body), hashlib.sha256(body).hexdigest())


async def test_large_payloads_go_both_ways_and_leave_nothing(desk: Desk) -> None:
    asked, answered = os.urandom(LARGE), os.urandom(LARGE)
    store = payload_store("n1")
    await desk.person.store(store, "asked", asked)
    references = References(desk.workers["n1"], "n1")
    assert await references.fetch(reference("asked", asked)) == asked
    given = await references.put(answered)
    assert given == reference(given.object, answered)
    assert await desk.person.fetch(store, given.object) == answered
    assert await chunks(desk) == 0
    assert desk.refused == {"n1": [], "n2": []}


async def chunks(desk: Desk, node_id: str = "n1") -> int:
    """How many objects there are any bytes of in this node's store."""
    store = payload_store(node_id)
    left = await desk.control.jetstream().stream_info(f"OBJ_{store}", subjects_filter=f"$O.{store}.C.>")
    return len(left.state.subjects or ())


async def test_what_was_stored_is_deleted_by_either_side(desk: Desk) -> None:
    body, store = os.urandom(LARGE), payload_store("n1")
    for name in ("one", "two"):
        await desk.person.store(store, name, body)
    assert await chunks(desk) == 2
    references = References(desk.workers["n1"], "n1")
    for _ in range(2):  # what is gone already is no error
        await desk.person.discard(store, "one")
        await references.drop(reference("two", body))
    assert await chunks(desk) == 0
    await desk.person.discard(store, "never there")
    await desk.control.jetstream().delete_object_store(store)
    await references.drop(reference("two", body))
    with pytest.raises(Unreachable):
        await desk.person.discard(store, "one")
    assert desk.refused == {"n1": [], "n2": []}


async def test_a_store_that_is_cancelled_leaves_nothing(desk: Desk) -> None:
    store = payload_store("n1")
    storing = asyncio.create_task(desk.person.store(store, "asked", os.urandom(64 * 1024 * 1024)))
    async with asyncio.timeout(30):
        while await chunks(desk) == 0:
            pass
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    await desk.person.discard(store, "asked")
    assert await chunks(desk) == 0
    state = (await desk.control.jetstream().stream_info(f"OBJ_{store}")).state
    assert state.messages <= 1  # that it was deleted, where all of it was there already


async def test_a_store_that_is_full_takes_nothing_and_keeps_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.control.payloads.PAYLOAD_STORE_BYTES_MAX", 1024 * 1024)
    await desk.control.jetstream().delete_object_store(payload_store("n1"))
    await PayloadStores(desk.control, lambda: NODES).step()
    with pytest.raises(Unreachable):
        await desk.person.store(payload_store("n1"), "asked", os.urandom(LARGE))
    await desk.person.discard(payload_store("n1"), "asked")
    assert await chunks(desk) == 0


@pytest.mark.parametrize("wrong", ["gone", "shorter", "other"])
async def test_what_is_not_as_announced_is_not_given_on(desk: Desk, wrong: str) -> None:
    body = os.urandom(300_000)
    if wrong != "gone":
        await desk.person.store(payload_store("n1"), "asked", body[:-1] if wrong == "shorter" else body[::-1])
    with pytest.raises(Refusal) as refused:
        await References(desk.workers["n1"], "n1").fetch(reference("asked", body))
    assert refused.value.code is Code.PAYLOAD_UNAVAILABLE


async def test_a_node_reaches_no_other_nodes_payloads(desk: Desk) -> None:
    body = os.urandom(300_000)
    await desk.person.store(payload_store("n2"), "asked", body)
    js = desk.workers["n1"].jetstream(timeout=0.5)
    stream = f"OBJ_{payload_store('n2')}"
    with pytest.raises((NatsError, TimeoutError)):
        await js.stream_info(stream)
    with pytest.raises((NatsError, TimeoutError)):
        await js.get_msg(stream, seq=1)
    with pytest.raises((NatsError, TimeoutError)):
        await js.purge_stream(stream)
    with pytest.raises((NatsError, TimeoutError)):
        await js.publish(f"$O.{payload_store('n2')}.C.x", b"x")
    assert len(desk.refused["n1"]) == 4
    assert await References(desk.workers["n2"], "n2").fetch(reference("asked", body)) == body


async def test_a_node_cannot_have_the_server_speak_for_it(desk: Desk) -> None:
    """Words that a node has stored, sent by JetStream to a subject the node itself may not publish on."""
    worker = desk.workers["n1"]
    store = payload_store("n1")
    forged = b'{"command_id":"c","actor":"anna","candidate_id":"x","candidate_digest":"y"}'
    await worker.jetstream().publish(f"$O.{store}.C.words", forged)
    stream = f"OBJ_{store}"
    consumer = {"stream_name": stream, "config": {"name": "c", "ack_policy": "none", "filter_subject": f"$O.{store}.>"}}
    for subject, body in (
        (f"$JS.API.CONSUMER.CREATE.{stream}.c.$O.{store}.>", json.dumps(consumer).encode()),
        (f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", b"1"),
        (f"$JS.API.DIRECT.GET.{stream}", b'{"seq":1}'),
        (f"$JS.API.DIRECT.GET.{stream}.$O.{store}.C.words", b""),
        (f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq":1}'),  # the one it may use
    ):
        await worker.publish(subject, body, reply=f"{subjects.CMD}.approval.grant")
    await worker.flush()
    js = desk.control.jetstream()
    async with asyncio.timeout(30):
        while (await js.stream_info(subjects.STREAM_COMMANDS)).state.messages == 0:
            pass  # JetStream answers requests behind the connection's own order
    came = await js.get_msg(subjects.STREAM_COMMANDS, seq=1)  # the last to be asked for, the first to come
    assert forged not in (came.data or b"")
    assert b"stream_msg_get_response" in (came.data or b"")
    assert (await js.stream_info(subjects.STREAM_COMMANDS)).state.messages == 1
    assert len(desk.refused["n1"]) == 4
