"""The front door: what is asked of a deployment in each of its states."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.codes import Code
from schemas.serving import ByReference, Cancel, Cancelled, Failure, ServeAnswer, ServeRequest
from schemas.tasks.text import EmbedRequest
from worker.serving.serve import Server


class Message:
    def __init__(self, request: ServeRequest) -> None:
        self.subject, self.reply = "tenure.serve.v1.n1.1.d1", "inbox"
        self.data = msgspec.msgpack.encode(request)
        self.answers: list[ServeAnswer] = []

    async def respond(self, body: bytes) -> None:
        self.answers.append(msgspec.msgpack.decode(body, type=ServeAnswer))


async def asked(request: ServeRequest, state: str) -> tuple[ServeAnswer, list[str]]:
    """What a resident in this state is answered with, and which cancels reached its intake."""
    cancels: list[str] = []

    def cancel(invocation_id: str) -> bool:
        cancels.append(invocation_id)
        return True

    resident = SimpleNamespace(state=state, intake=SimpleNamespace(cancel=cancel))
    residents: Any = SimpleNamespace(get=lambda _: resident, generation="1")
    client: Any = SimpleNamespace(jetstream=lambda: None, max_payload=1_048_576)
    message: Any = Message(request)
    await Server(client, "n1", residents, lambda: True).handle(message)
    (answer,) = message.answers
    return answer, cancels


@pytest.mark.parametrize("state", ["resident", "draining", "unloading"])
async def test_a_cancel_is_for_what_is_under_way_whatever_the_state(state: str) -> None:
    assert await asked(Cancel("it"), state) == (Cancelled(True), ["it"])


@pytest.mark.parametrize(("state", "code"), [("draining", Code.DRAINING), ("unloading", Code.NOT_RESIDENT)])
async def test_what_ends_takes_nothing_more(state: str, code: Code) -> None:
    answer, _ = await asked(EmbedRequest(["a"]), state)
    assert isinstance(answer, Failure)
    assert answer.code is code


class Store:
    """The worker's side of an object store: a fetch takes until a test lets it go."""

    def __init__(self) -> None:
        self.fetching, self.go = asyncio.Event(), asyncio.Event()
        self.dropped: list[str] = []

    async def fetch(self, reference: ByReference) -> bytes:
        self.fetching.set()
        await self.go.wait()
        return msgspec.msgpack.encode(EmbedRequest(["a"]))

    async def drop(self, reference: ByReference) -> None:
        self.dropped.append(reference.object)


def fetching(state: str) -> tuple[Server, Store, Any]:
    """A server, its store, and a request by reference named `it`."""
    resident = SimpleNamespace(state=state, intake=SimpleNamespace(cancel=lambda _: False))
    residents: Any = SimpleNamespace(get=lambda _: resident, generation="1")
    client: Any = SimpleNamespace(jetstream=lambda: None, max_payload=1_048_576)
    server, store = Server(client, "n1", residents, lambda: True), Store()
    server._references = store  # type: ignore[assignment]
    return server, store, Message(ByReference("object", 1, "a" * 64, invocation_id="it"))


async def settled(server: Server) -> None:
    async with asyncio.timeout(5):
        while server._fetching:
            await asyncio.wait(server._fetching)


async def test_what_is_refused_without_a_fetch_is_dropped() -> None:
    server, store, message = fetching("draining")
    await server.handle(message)
    await settled(server)
    (answer,) = message.answers
    assert answer.code is Code.DRAINING
    assert store.dropped == ["object"]
    assert not store.fetching.is_set()


async def test_a_request_can_be_cancelled_while_it_is_fetched() -> None:
    server, store, message = fetching("resident")
    await server.handle(message)
    await asyncio.wait_for(store.fetching.wait(), 5)
    cancel: Any = Message(Cancel("it"))
    await server.handle(cancel)
    assert cancel.answers == [Cancelled(True)]
    await settled(server)
    (answer,) = message.answers
    assert answer.code is Code.INVOCATION_CANCELLED
    assert store.dropped == ["object"]
    again: Any = Message(Cancel("it"))
    await server.handle(again)
    assert again.answers == [Cancelled(False)]
