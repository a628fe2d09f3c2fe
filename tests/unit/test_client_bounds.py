"""How long an invocation may take: one bound for client and worker, and a cancel for what nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from schemas.codes import Code, Refusal
from schemas.queries import Query, QueryReply
from schemas.serving import Cancel, Cancelled, ServeRequest
from schemas.tasks.invocation import INVOKE_MS_MAX
from schemas.tasks.text import EmbedRequest, GenerateRequest, TextChunk
from services.client import Client
from services.client.invoking import INVOKE_MS, MARGIN_S
from services.client.wire import NoResponder, Silent, Unreachable
from tests.fake_wire import FakeWire, deployment, profile
from tests.unit.test_client_invoking import SERVED, answer, asked, client, encode, vectors, wire

__all__ = ["client", "wire"]  # the fixtures
PROFILES = "tenure.query.v1.profile"


@pytest.mark.parametrize(
    ("invoke_ms", "said_ms", "bound_ms"),
    [
        (300_000, None, 300_000),
        (300_000, 5_000, 5_000),
        (10_000, None, 10_000),
        (10_000, 50_000, 10_000),
        (86_400_000, None, INVOKE_MS_MAX),
        (None, None, INVOKE_MS),
        (None, 90_000, 90_000),
    ],
)
async def test_client_and_worker_keep_to_one_bound(
    wire: FakeWire, client: Client, invoke_ms: int | None, said_ms: int | None, bound_ms: int
) -> None:
    if invoke_ms is not None:
        wire.put(profile(invoke_ms=invoke_ms))
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["a"], deadline_ms=said_ms))
    await client.invoke(deployment(), EmbedRequest(["b"], deadline_ms=said_ms))  # where it is known from before
    assert [request.deadline_ms for request in asked(wire)] == [bound_ms, bound_ms]
    assert wire.timeouts_s[SERVED] == bound_ms / 1_000 + MARGIN_S


async def test_a_stream_keeps_to_it_too(wire: FakeWire, client: Client) -> None:
    wire.put(profile(invoke_ms=300_000))
    wire.streams[SERVED] = [encode(TextChunk(0, "word"))]
    pieces = client.stream(deployment(capability="text_generation"), GenerateRequest(prompt="p", stream=True))
    await anext(pieces)
    await pieces.aclose()
    assert asked(wire)[0].deadline_ms == 300_000


async def test_a_profile_that_cannot_be_had_is_asked_for_with_the_place(
    wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [QueryReply(code=Code.MESSAGE_TOO_LARGE), QueryReply([{"id": "p", "profile": {}}])]
    wire.answers[PROFILES] = lambda payload: msgspec.json.encode(replies.pop(0))
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["a"]))
    await client.invoke(deployment(), EmbedRequest(["a"]))
    assert len(replies) == 1
    monkeypatch.setattr("services.client.targets.TARGETS_SECONDS_MAX", 0.0)
    await client.invoke(deployment(), EmbedRequest(["a"]))
    assert [request.deadline_ms for request in asked(wire)] == [INVOKE_MS] * 3
    first = next(msgspec.json.decode(body, type=Query) for subject, body in wire.sent if subject == PROFILES)
    assert (first.where, first.limit) == ({"id": deployment().profile_id}, 1)


class Worker:
    """It takes invocations in and answers none; `seen` says that one came."""

    def __init__(self, wire: FakeWire) -> None:
        self.seen = asyncio.Event()
        self.cancelled: list[str] = []
        self.never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        wire.answers[SERVED] = self.answer

    async def answer(self, payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=ServeRequest)
        if isinstance(request, Cancel):
            self.cancelled.append(request.invocation_id)
            return encode(Cancelled(True))
        self.seen.set()
        return await asyncio.shield(self.never)


async def test_a_call_that_is_cancelled_is_cancelled_at_the_worker(wire: FakeWire, client: Client) -> None:
    worker = Worker(wire)
    call = asyncio.create_task(client.invoke(deployment(), EmbedRequest(["a"])))
    await worker.seen.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.close()
    assert worker.cancelled == [asked(wire)[0].invocation_id]


async def test_a_cancelled_call_waits_for_no_worker(wire: FakeWire, client: Client) -> None:
    """The cancel itself may hang; whoever cancelled goes on, and closing waits for it."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    worker = Worker(wire)
    answered = worker.answer

    async def slow(payload: bytes) -> bytes:
        if isinstance(msgspec.msgpack.decode(payload, type=ServeRequest), Cancel):
            begun.set()
            await go_on.wait()
        return await answered(payload)

    wire.answers[SERVED] = slow
    call = asyncio.create_task(client.invoke(deployment(), EmbedRequest(["a"])))
    await worker.seen.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    closing = asyncio.create_task(client.close())
    await begun.wait()
    assert not wire.closed
    go_on.set()
    await closing
    assert wire.closed
    assert len(worker.cancelled) == 1


async def test_the_callers_own_name_is_kept(wire: FakeWire, client: Client) -> None:
    worker = Worker(wire)
    call = asyncio.create_task(client.invoke(deployment(), EmbedRequest(["a"], invocation_id="mine")))
    await worker.seen.wait()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await client.close()
    assert worker.cancelled == ["mine"]


@pytest.mark.parametrize(("failure", "code"), [(Silent, Code.DEADLINE_EXCEEDED), (Unreachable, Code.UNAVAILABLE)])
@pytest.mark.parametrize("cancel_failure", [None, Silent, NoResponder, Unreachable])
async def test_who_gives_up_cancels_and_the_outcome_stays(
    wire: FakeWire, client: Client, failure: Any, code: Code, cancel_failure: Any
) -> None:
    def fail(payload: bytes) -> bytes:
        if not isinstance(msgspec.msgpack.decode(payload, type=ServeRequest), Cancel):
            raise failure(SERVED)
        if cancel_failure is not None:
            raise cancel_failure(SERVED)
        return encode(Cancelled(True))

    wire.answers[SERVED] = fail
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["a"]))
    assert caught.value.code is code
    request, cancel = asked(wire)
    assert cancel == Cancel(request.invocation_id)


async def test_an_errand_is_bounded(wire: FakeWire, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.client.errands.ERRAND_SECONDS_MAX", 0.0)
    never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def fail(payload: bytes) -> Any:
        if isinstance(msgspec.msgpack.decode(payload, type=ServeRequest), Cancel):
            return asyncio.shield(never)
        raise Silent(SERVED)

    wire.answers[SERVED] = fail
    with pytest.raises(Refusal) as caught:
        await client.invoke(deployment(), EmbedRequest(["a"]))
    assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_what_was_answered_or_never_received_is_not_cancelled(wire: FakeWire, client: Client) -> None:
    wire.answers[SERVED] = lambda payload: answer(vectors())
    await client.invoke(deployment(), EmbedRequest(["a"]))
    del wire.answers[SERVED]
    with pytest.raises(Refusal):
        await client.invoke(deployment(), EmbedRequest(["a"]))
    assert not any(isinstance(request, Cancel) for request in asked(wire))
