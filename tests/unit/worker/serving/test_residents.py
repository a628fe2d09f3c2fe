"""Residents: an unload that is given up halfway leaves no process behind, and nothing in the map."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas.codes import Code, Refusal
from schemas.environments import RuntimeEnvironment
from schemas.profiles import RuntimeProfile
from schemas.serving import Failure, ServeAnswer
from schemas.tasks.text import EmbedRequest
from worker.model.child import Exit
from worker.serving import residents as module
from worker.serving.resident import Resident
from worker.serving.residents import Residents

ENVIRONMENT = RuntimeEnvironment(python="3.11", platform="test", worker="0", packages={}, adapters={}, devices=[])
PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding")


class HangingProcess:
    """A model process that answers nothing any more."""

    def __init__(self) -> None:
        self.exited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.kills = 0
        self.stuck = False  # in a driver, say: no signal ends it
        self.on_partial: Any = None
        self.identity = SimpleNamespace(pid=1)

    async def ask(self, request: Any, timeout_ms: float) -> Any:
        raise TimeoutError

    async def kill(self) -> Exit:
        self.kills += 1
        if self.stuck:
            raise TimeoutError
        self.exited.set_result(Exit(-9, True))
        return self.exited.result()


class HangingModel:
    def __init__(self) -> None:
        self.process = HangingProcess()
        self.profile = PROFILE


class SlowIntake:
    """Nothing is in flight; to close it takes as long as the test."""

    in_flight = invocations = 0

    def __init__(self) -> None:
        self.closing = asyncio.Event()

    async def drained(self, timeout_ms: float) -> int:
        return 0

    async def close(self, code: Code | None, message: str) -> None:
        self.closing.set()
        await asyncio.Event().wait()


def held(intake: SlowIntake | None) -> tuple[Residents, Resident, HangingModel]:
    async def on_lost(*_: Any) -> None:
        raise AssertionError("nobody asks for a process that was ended on purpose")

    residents = Residents("1", ENVIRONMENT, on_lost)
    resident, model = Resident("d1", "a" * 64, "b" * 64, PROFILE, "w1", 1), HangingModel()
    resident.model, resident.intake, resident.state = model, intake, "resident"  # type: ignore[assignment]
    residents._by_id["d1"] = resident
    return residents, resident, model


async def test_an_unload_cancelled_while_the_model_hangs_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def never(model: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "unload_model", never)
    residents, resident, model = held(None)
    await cancelled_once(asked, residents)
    assert model.process.kills == 1
    assert residents.get("d1") is None
    assert resident.gone.is_set()


async def test_an_unload_cancelled_while_the_last_answers_go_out_ends_its_process() -> None:
    intake = SlowIntake()
    residents, resident, model = held(intake)
    await cancelled_once(intake.closing, residents)
    assert model.process.kills == 1
    assert residents.get("d1") is None
    assert resident.gone.is_set()
    with pytest.raises(Refusal) as refusal:
        residents.serving("d1")
    assert refusal.value.code is Code.NOT_RESIDENT


async def cancelled_once(reached: asyncio.Event, residents: Residents) -> None:
    unload = asyncio.create_task(residents.unload("d1"))
    async with asyncio.timeout(5):
        await reached.wait()
        unload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unload


class Hung:
    """A resident whose model gives no answer to what it is asked, and what was heard of it."""

    def __init__(self) -> None:
        self.lost: list[tuple[Code, str, int | None]] = []
        self.residents = Residents("1", ENVIRONMENT, self._on_lost)
        self.resident = Resident("d1", "a" * 64, "b" * 64, PROFILE, "w1", 1)
        self.model = HangingModel()

    async def _on_lost(self, resident: Resident, code: Code, message: str, exit_code: int | None) -> None:
        self.lost.append((code, message, exit_code))

    async def asked(self) -> Failure:
        """The answer to a first invocation, which is that it hangs."""

        async def load() -> Any:
            return self.model

        await self.residents.load(self.resident, load)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def respond(body: bytes) -> None:
            answer.set_result(body)

        request = EmbedRequest(["a"])
        assert self.resident.intake is not None
        self.resident.intake.accept(request, msgspec.msgpack.encode(request), respond)
        async with asyncio.timeout(5):
            failure = msgspec.msgpack.decode(await answer, type=ServeAnswer)
            while not self.lost:  # noqa: ASYNC110 - what is lost sets no event
                await asyncio.sleep(0)
        assert isinstance(failure, Failure)
        return failure


async def test_a_model_that_hangs_is_ended_and_lost() -> None:
    hung = Hung()
    assert (await hung.asked()).code is Code.DEADLINE_EXCEEDED
    assert [(code, exit_code) for code, _, exit_code in hung.lost] == [(Code.DEADLINE_EXCEEDED, -9)]
    assert hung.residents.get("d1") is None


async def test_a_model_that_hangs_and_that_nobody_can_end_serves_no_more_and_is_told() -> None:
    hung = Hung()
    hung.model.process.stuck = True
    assert (await hung.asked()).code is Code.DEADLINE_EXCEEDED
    ((code, message, exit_code),) = hung.lost
    assert (code, exit_code) == (Code.DEADLINE_EXCEEDED, None)
    assert "nobody can end" in message
    assert [entry.state for entry in hung.residents.inventory()] == ["unloading"]
    await hung.residents.kill_all()  # as a session does at its end: whatever hangs, the rest goes on
    hung.model.process.exited.set_result(Exit(-9, True))
    async with asyncio.timeout(5):
        await hung.resident.gone.wait()
    assert hung.residents.inventory() == []
    assert len(hung.lost) == 1
