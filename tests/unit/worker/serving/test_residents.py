"""Residents: an unload that is given up halfway leaves no process behind, and nothing in the map."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from schemas.codes import Code, Refusal
from schemas.environments import RuntimeEnvironment
from schemas.profiles import RuntimeProfile
from worker.serving import residents as module
from worker.serving.residents import Resident, Residents

ENVIRONMENT = RuntimeEnvironment(python="3.11", platform="test", worker="0", packages={}, adapters={}, devices=[])
PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding")


class HangingProcess:
    """A model process that answers nothing any more."""

    def __init__(self) -> None:
        self.exited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.kills = 0

    async def kill(self) -> None:
        self.kills += 1


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
