"""The front door: what is asked of a deployment in each of its states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.codes import Code
from schemas.serving import Cancel, Cancelled, Failure, ServeAnswer, ServeRequest
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
    client: Any = SimpleNamespace(jetstream=lambda: None)
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
