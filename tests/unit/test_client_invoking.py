"""Invocations from the client's side: by reference both ways, in pieces, and cancelled. On the bus port in memory."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.serving import Answer, ByReference, Cancel, Cancelled, Failure, ServeRequest, payload_store
from schemas.tasks.text import Embedded, EmbedRequest, Generated, GenerateRequest, TextChunk
from schemas.tokens import MESSAGE_BYTES_MAX
from services.client import Client
from tests.fake_wire import ARTIFACT, PROFILE, FakeWire, deployment, node, profile, residency

PLACE = 2  # tables that say where a deployment is served
SERVED = subjects.serve_subject("local", "3", "dep0123456789ab")
encode = msgspec.msgpack.encode


@pytest.fixture
def wire() -> FakeWire:
    wire = FakeWire()
    wire.put(node(), deployment(), residency())
    return wire


@pytest.fixture
def client(wire: FakeWire) -> Client:
    return Client(wire, "tester")


def answer(result: Any) -> bytes:
    return encode(Answer(result, ARTIFACT, PROFILE, "3", 1.0))


def vectors(rows: int = 1) -> Embedded:
    return Embedded(bytes(4 * rows), rows, 1, [1] * rows, [False] * rows)


def generated(text: str) -> Generated:
    return Generated(text, "stop", 3, 4)


def asked(wire: FakeWire) -> list[Any]:
    return [msgspec.msgpack.decode(body, type=ServeRequest) for subject, body in wire.sent if subject == SERVED]


async def test_a_large_request_goes_by_reference(wire: FakeWire, client: Client) -> None:
    text = "x" * (MESSAGE_BYTES_MAX + 1)
    stored: list[Any] = []

    def take(payload: bytes) -> bytes:
        reference = msgspec.msgpack.decode(payload, type=ServeRequest)
        assert isinstance(reference, ByReference)
        body = wire.objects[(payload_store("local"), reference.object)]
        assert (len(body), hashlib.sha256(body).hexdigest()) == (reference.bytes, reference.sha256)
        assert (reference.deadline_ms, reference.invocation_id) == (5_000, "one")
        stored.append(msgspec.msgpack.decode(body, type=ServeRequest))
        return answer(vectors())

    wire.answers[SERVED] = take
    await client.invoke(deployment(), EmbedRequest([text], deadline_ms=5_000, invocation_id="one"))
    assert stored == [EmbedRequest([text], deadline_ms=5_000, invocation_id="one")]


async def test_a_request_beyond_every_bound_is_refused_before_it_is_sent(wire: FakeWire, client: Client) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.client.payload.PAYLOAD_BYTES_MAX", 2 * MESSAGE_BYTES_MAX)
        with pytest.raises(Refusal) as caught:
            await client.invoke(deployment(), EmbedRequest(["x" * (2 * MESSAGE_BYTES_MAX)]))
    assert caught.value.code is Code.INPUT_TOO_LARGE
    assert asked(wire) == []


async def test_an_answer_by_reference_is_fetched_checked_and_gone(wire: FakeWire, client: Client) -> None:
    body = answer(vectors(3))
    wire.objects[(payload_store("local"), "o1")] = body
    reference = ByReference("o1", len(body), hashlib.sha256(body).hexdigest())
    wire.answers[SERVED] = lambda payload: encode(reference)
    found = await client.invoke(deployment(), EmbedRequest(["a", "b", "c"]))
    assert isinstance(found.result, Embedded)
    assert found.result.rows == 3
    assert wire.objects == {}


@pytest.mark.parametrize("wrong", [{"bytes": 7}, {"sha256": "0" * 64}])
async def test_an_answer_that_is_not_what_was_announced_does_not_count(
    wire: FakeWire, client: Client, wrong: dict[str, Any]
) -> None:
    body = answer(vectors())
    wire.objects[(payload_store("local"), "o1")] = body
    reference = ByReference("o1", len(body), hashlib.sha256(body).hexdigest())
    wire.answers[SERVED] = lambda payload: encode(msgspec.structs.replace(reference, **wrong))
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["a"]))
    assert caught.value.code is Code.PAYLOAD_UNAVAILABLE


async def test_pieces_come_before_the_whole(wire: FakeWire, client: Client) -> None:
    wire.streams[SERVED] = [encode(TextChunk(0, "to")), encode(TextChunk(1, "gether")), answer(generated("together"))]
    row = deployment(capability="text_generation")
    pieces = [piece async for piece in client.stream(row, GenerateRequest(prompt="p", stream=True))]
    assert [piece.text for piece in pieces if isinstance(piece, TextChunk)] == ["to", "gether"]
    assert isinstance(pieces[-1], Answer)
    assert pieces[-1].result == generated("together")
    request = asked(wire)[0]
    assert request.invocation_id  # so that it can be cancelled


async def test_who_stops_listening_has_it_cancelled(wire: FakeWire, client: Client) -> None:
    wire.streams[SERVED] = [encode(TextChunk(number, "word ")) for number in range(9)]
    wire.answers[SERVED] = lambda payload: encode(Cancelled(True))
    row = deployment(capability="text_generation")
    pieces = client.stream(row, GenerateRequest(prompt="p", stream=True))
    assert await anext(pieces) == TextChunk(0, "word ")
    await pieces.aclose()
    request, cancel = asked(wire)
    assert cancel == Cancel(request.invocation_id)


async def test_a_failure_ends_the_stream_and_needs_no_cancel(wire: FakeWire, client: Client) -> None:
    wire.streams[SERVED] = [encode(TextChunk(0, "wo")), encode(Failure(Code.OUT_OF_MEMORY, "memory ran out"))]
    row = deployment(capability="text_generation")
    with pytest.raises(Refusal) as caught:
        _ = [piece async for piece in client.stream(row, GenerateRequest(prompt="p", stream=True))]
    assert caught.value.code is Code.OUT_OF_MEMORY
    assert len(asked(wire)) == 1


async def test_silence_in_the_middle_is_told_and_cancelled(wire: FakeWire, client: Client) -> None:
    wire.streams[SERVED] = [encode(TextChunk(0, "wo"))]
    wire.answers[SERVED] = lambda payload: encode(Cancelled(True))
    row = deployment(capability="text_generation")
    with pytest.raises(Refusal) as caught:
        _ = [piece async for piece in client.stream(row, GenerateRequest(prompt="p", stream=True))]
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert isinstance(asked(wire)[-1], Cancel)


async def test_a_result_of_another_task_does_not_count(wire: FakeWire, client: Client) -> None:
    wire.answers[SERVED] = lambda payload: answer(generated("text"))
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["a"]))
    assert caught.value.code is Code.INTERNAL_ERROR


async def test_a_cancel_tells_whether_there_was_something(wire: FakeWire, client: Client) -> None:
    wire.answers[SERVED] = lambda payload: encode(Cancelled(msgspec.msgpack.decode(payload)["invocation_id"] == "one"))
    assert await client.cancel(deployment(), "one")
    assert not await client.cancel(deployment(), "two")


def asked_tables(wire: FakeWire) -> int:
    return sum(subject.startswith(subjects.QUERY) for subject, _ in wire.sent)


async def test_where_it_is_served_is_asked_once_in_a_while(
    wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.answers[SERVED] = lambda payload: answer(vectors())
    wire.put(profile())
    await client.invoke(deployment(), EmbedRequest(["a"]))
    assert asked_tables(wire) == PLACE + 1  # the profile never changes
    await client.invoke(deployment(), EmbedRequest(["b"]))
    assert asked_tables(wire) == PLACE + 1
    await client.invoke(deployment(), EmbedRequest(["c"]), "local")  # a node of one's own choice is another question
    assert asked_tables(wire) == 2 * PLACE + 1
    monkeypatch.setattr("services.client.targets.TARGETS_SECONDS_MAX", 0.0)
    await client.invoke(deployment(), EmbedRequest(["d"]))
    assert asked_tables(wire) == 3 * PLACE + 1


async def test_an_invocation_follows_the_deployment_to_a_newer_generation(wire: FakeWire, client: Client) -> None:
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["a"]))
    del wire.answers[SERVED]
    wire.put(node(generation="4"), residency(generation="4"))
    newer = subjects.serve_subject("local", "4", "dep0123456789ab")
    wire.answers[newer] = lambda payload: encode(Answer(vectors(), ARTIFACT, PROFILE, "4", 1.0))
    assert (await client.invoke(deployment(), EmbedRequest(["b"]))).generation == "4"


async def test_a_worker_that_no_longer_holds_it_is_asked_about_once_more(wire: FakeWire, client: Client) -> None:
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["a"]))
    wire.answers[SERVED] = lambda payload: encode(Failure(Code.NOT_RESIDENT, "unloaded"))
    before = len(asked(wire))
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["b"]))
    assert caught.value.code is Code.NOT_RESIDENT
    assert len(asked(wire)) == before + 2


async def test_after_a_refusal_the_tables_are_asked_anew_and_nothing_is_sent_twice(
    wire: FakeWire, client: Client
) -> None:
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["a"]))
    first, before = asked_tables(wire), len(asked(wire))
    wire.answers[SERVED] = lambda payload: encode(Failure(Code.OVERLOADED, "full"))
    with pytest.raises(Refusal):
        await client.invoke(deployment(), EmbedRequest(["b"]))
    assert (asked_tables(wire), len(asked(wire))) == (first, before + 1)
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["c"]))
    assert asked_tables(wire) == 2 * first
