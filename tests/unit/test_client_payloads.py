"""What a client stores for a worker is gone once it is of no use: no node's store fills with what was refused."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.serving import Answer, ByReference, Cancel, Cancelled, Failure, ServeRequest, payload_store
from schemas.tasks.text import EmbedRequest, GenerateRequest
from schemas.tokens import MESSAGE_BYTES_MAX
from services.client import Client
from services.client.wire import NoResponder, Silent, Unreachable
from tests.fake_wire import ARTIFACT, PROFILE, FakeWire, deployment, node, residency
from tests.unit.test_client_bounds import Worker
from tests.unit.test_client_invoking import SERVED, answer, asked, client, encode, vectors, wire

__all__ = ["client", "wire"]  # the fixtures
LARGE = EmbedRequest(["x" * (MESSAGE_BYTES_MAX + 1)])
DEPLOYMENT = "dep0123456789ab"


def taking(wire: FakeWire, node_id: str, reply: bytes) -> Any:
    """A worker that reads the request, which deletes it, and answers."""

    def answer(payload: bytes) -> bytes:
        reference = msgspec.msgpack.decode(payload, type=ServeRequest)
        assert isinstance(reference, ByReference)
        del wire.objects[(payload_store(node_id), reference.object)]
        return reply

    return answer


def refusing(payload: bytes) -> bytes:
    if isinstance(msgspec.msgpack.decode(payload, type=ServeRequest), Cancel):
        return encode(Cancelled(False))
    return encode(Failure(Code.OVERLOADED, "full"))


def failing(failure: Exception) -> Any:
    def fail(payload: bytes) -> bytes:
        raise failure

    return fail


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (refusing, Code.OVERLOADED),
        (lambda payload: b"?", Code.INTERNAL_ERROR),
        (failing(NoResponder(SERVED)), Code.NOT_RESIDENT),
        (failing(Silent(SERVED)), Code.DEADLINE_EXCEEDED),
        (failing(Unreachable(SERVED)), Code.UNAVAILABLE),
    ],
)
async def test_a_request_that_was_not_taken_is_deleted(wire: FakeWire, client: Client, reply: Any, code: Code) -> None:
    wire.answers[SERVED] = reply
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), LARGE)
    assert caught.value.code is code
    assert (wire.stored, wire.objects) == (1, {})


async def test_a_request_that_was_taken_needs_no_deletion(
    wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded: list[str] = []

    async def discard(bucket: str, name: str) -> None:
        discarded.append(name)

    monkeypatch.setattr(wire, "discard", discard)
    wire.answers[SERVED] = taking(wire, "local", answer(vectors()))
    await client.invoke(deployment(), LARGE)
    assert (wire.objects, discarded) == ({}, [])


async def test_a_call_that_is_cancelled_leaves_nothing(wire: FakeWire, client: Client) -> None:
    worker = Worker(wire)
    call = asyncio.create_task(client.invoke(deployment(), LARGE))
    await worker.seen.wait()
    assert len(wire.objects) == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.close()
    assert wire.objects == {}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_stored_in_part_is_taken_back(
    wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    storing = asyncio.Event()

    async def store(bucket: str, name: str, body: bytes) -> None:
        wire.objects[(bucket, name)] = body[:10]
        storing.set()
        if not cancelled:
            raise Unreachable("the store is full")
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(wire, "store", store)
    call = asyncio.create_task(client.invoke(deployment(), LARGE))
    await storing.wait()
    if cancelled:
        call.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else Refusal):
        await call
    await client.close()
    assert wire.objects == {}
    assert asked(wire) == []


async def test_a_deletion_that_fails_changes_no_outcome(
    wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def discard(bucket: str, name: str) -> None:
        raise Unreachable("the connection broke")

    monkeypatch.setattr(wire, "discard", discard)
    wire.answers[SERVED] = refusing
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), LARGE)
    assert caught.value.code is Code.OVERLOADED


async def test_a_stream_that_is_refused_or_left_leaves_nothing(wire: FakeWire, client: Client) -> None:
    row, request = deployment(capability="text_generation"), GenerateRequest(prompt=LARGE.texts[0], stream=True)
    wire.streams[SERVED] = [encode(Failure(Code.INPUT_TOO_LARGE, "too many characters"))]
    with pytest.raises(Refusal):
        _ = [piece async for piece in client.stream(row, request)]
    assert (wire.stored, wire.objects) == (1, {})
    wire.streams[SERVED] = []
    with pytest.raises(Refusal):
        _ = [piece async for piece in client.stream(row, request)]
    assert (wire.stored, wire.objects) == (2, {})


async def known_at(wire: FakeWire, client: Client) -> None:
    """The client remembers that the deployment is served by generation 3."""
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["a"]))


async def test_two_tries_at_one_node_store_once_where_nobody_listened(wire: FakeWire, client: Client) -> None:
    await known_at(wire, client)
    del wire.answers[SERVED]
    wire.put(node(generation="4"), residency(generation="4"))
    newer = subjects.serve_subject("local", "4", DEPLOYMENT)
    reply = encode(Answer(vectors(), ARTIFACT, PROFILE, "4", 1.0))
    wire.answers[newer] = taking(wire, "local", reply)
    assert (await client.invoke(deployment(), LARGE)).generation == "4"
    assert (wire.stored, wire.objects) == (1, {})


async def test_after_a_workers_refusal_the_next_try_has_an_object_of_its_own(wire: FakeWire, client: Client) -> None:
    """The worker may have taken or deleted the first."""
    await known_at(wire, client)
    names: list[str] = []

    def unloaded(payload: bytes) -> bytes:
        names.append(msgspec.msgpack.decode(payload, type=ByReference).object)
        assert list(wire.objects) == [(payload_store("local"), names[-1])]
        return encode(Failure(Code.NOT_RESIDENT, "unloaded"))

    wire.answers[SERVED] = unloaded
    with pytest.raises(Refusal):
        await client.invoke(deployment(), LARGE)
    assert len(set(names)) == wire.stored == 2
    assert wire.objects == {}


async def test_the_next_node_has_an_object_of_its_own(wire: FakeWire, client: Client) -> None:
    both = deployment(node_ids=["gone", "local"])
    wire.put(node("gone"), both)
    wire.rows["residency"] = {}
    wire.answers[SERVED] = taking(wire, "local", answer(vectors()))
    await client.invoke(both, LARGE)
    assert (wire.stored, wire.objects) == (2, {})


def by_reference(wire: FakeWire) -> ByReference:
    """An answer that lies in the store."""
    body = answer(vectors(3))
    wire.objects[(payload_store("local"), "o1")] = body
    return ByReference("o1", len(body), hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize(("failures", "had"), [(1, True), (2, False)])
async def test_an_answer_that_was_paid_for_is_fetched_twice_and_never_left(
    wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch, failures: int, had: bool
) -> None:
    reference, fetch = by_reference(wire), wire.fetch
    left = [Unreachable("the connection broke")] * failures

    async def flaky(bucket: str, name: str) -> bytes:
        if left:
            raise left.pop()
        return await fetch(bucket, name)

    monkeypatch.setattr(wire, "fetch", flaky)
    wire.answers[SERVED] = lambda payload: encode(reference)
    if had:
        assert (await client.invoke(deployment(), EmbedRequest(["a", "b", "c"]))).generation == "3"
    else:
        with pytest.raises(Refusal) as caught:
            await client.invoke(deployment(), EmbedRequest(["a", "b", "c"]))
        assert caught.value.code is Code.UNAVAILABLE
    assert wire.objects == {}


async def test_an_answer_whose_fetch_is_cancelled_is_not_left(
    wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, fetching = by_reference(wire), asyncio.Event()

    async def fetch(bucket: str, name: str) -> bytes:
        fetching.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    monkeypatch.setattr(wire, "fetch", fetch)
    wire.answers[SERVED] = lambda payload: encode(reference)
    call = asyncio.create_task(client.invoke(deployment(), EmbedRequest(["a", "b", "c"])))
    await fetching.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.close()
    assert wire.objects == {}
