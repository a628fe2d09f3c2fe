"""What a claim tells of devices: measured just before it, for work that may need device memory and for no other.

The control plane grants such work only on what the claim says was free at that moment. So it matters which kinds are
measured, when, and that a claim made anew is measured anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client

from schemas.codes import Code
from schemas.commands import ClaimLease, Command
from schemas.devices import DeviceReading
from schemas.environments import Device, RuntimeEnvironment
from schemas.live import Beat, BeatReply
from schemas.replies import Reply
from schemas.work import Offer, WorkKind
from tests.unit.worker.memory.recorded_driver import install
from worker.clock import local_ms
from worker.duty import claiming
from worker.duty.dispatch import SLOTS_HEAVY, Dispatcher
from worker.session import Granted, Session
from worker.settings import WorkerSettings

KINDS: tuple[WorkKind, ...] = get_args(WorkKind)
ON_DEVICE = ("probe", "load")
SECONDS_MAX = 10.0
H100 = 85_520_809_984
NOT_YOURS = Reply("rejected", "c", code=Code.WORK_NOT_YOURS)
TOLD_BEFORE = Reply("accepted", "c", result={"work_id": "w1", "attempt": 1}, repeated=True)
NOBODY: Any = None  # what work that is not granted never reaches


class Plane:
    """The control plane's side of claims and heartbeats. `answers` are used up, one for each claim; then NOT_YOURS."""

    def __init__(self, *answers: Reply | Exception) -> None:
        self.claims: list[ClaimLease] = []
        self.answers = list(answers)
        self.offers: list[Offer] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def command(self, name: str, command: Command, timeout_ms: float) -> Reply:
        assert isinstance(command, ClaimLease)
        self.claims.append(command)
        await self.may_answer.wait()
        answer = self.answers.pop(0) if self.answers else NOT_YOURS
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply:
        return BeatReply(False, 60_000, 1_000, [], self.offers, [])


class Meter:
    """Readings that can be told apart: each says how many were made before it."""

    def __init__(self) -> None:
        self.made = 0
        self.error: Exception | None = None

    async def __call__(self) -> list[DeviceReading]:
        if self.error is not None:
            raise self.error
        self.made += 1
        return [DeviceReading(0, H100, self.made - 1)]


def dispatcher(plane: Plane, meter: Meter) -> Dispatcher:
    return Dispatcher(plane, NOBODY, NOBODY, "gpu-1", "7", 30_000.0, meter)


def offer(kind: WorkKind, work_id: str = "w1", attempt: int = 1) -> Offer:
    return Offer(work_id, "gpu-1", kind, attempt)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not reached():  # noqa: ASYNC110 - tasks of the dispatcher's own
            await asyncio.sleep(0)


def used(claim: ClaimLease) -> list[int | None]:
    return [each.used_bytes for each in claim.devices]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_claim_tells_of_devices_where_its_work_may_need_one(kind: WorkKind) -> None:
    plane, meter = Plane(), Meter()
    assert dispatcher(plane, meter).offer(offer(kind))
    await until(lambda: len(plane.claims) == 1)
    assert (used(plane.claims[0]), meter.made) == (([0], 1) if kind in ON_DEVICE else ([], 0))


async def test_a_claim_made_anew_is_measured_anew() -> None:
    """A token that got lost: what is free now may not be what was free then."""
    plane, meter = Plane(TOLD_BEFORE, NOT_YOURS), Meter()
    dispatcher(plane, meter).offer(offer("load"))
    await until(lambda: len(plane.claims) == 2)
    assert [used(claim) for claim in plane.claims] == [[0], [1]]
    assert plane.claims[0].command_id != plane.claims[1].command_id


async def test_work_that_was_cancelled_before_its_grant_was_heard_is_claimed_once_more_and_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claiming, "PAUSE_MS_MIN", SECONDS_MAX * 2_000)
    cancelled = Reply("accepted", "c", result={"work_id": "w1", "refused": "WORK_CANCELLED", "message": "meanwhile"})
    plane, meter = Plane(TOLD_BEFORE, cancelled), Meter()
    duty = dispatcher(plane, meter)
    assert duty.offer(offer("load"))
    duty.cancel("w1")  # not claimed yet: there is nothing to hurry
    await until(lambda: len(plane.claims) == 1)
    duty.cancel("w1")
    await until(lambda: not duty._in_hand)
    assert len(plane.claims) == 2
    assert not duty.offer(offer("load"))


async def test_work_that_waits_for_a_slot_is_measured_when_it_has_one() -> None:
    plane, meter = Plane(), Meter()
    plane.may_answer.clear()
    duty = dispatcher(plane, meter)
    for number in range(SLOTS_HEAVY + 1):
        assert duty.offer(offer("probe", f"w{number}"))
    await until(lambda: len(plane.claims) == SLOTS_HEAVY)
    for _ in range(100):
        await asyncio.sleep(0)
    assert meter.made == SLOTS_HEAVY
    plane.may_answer.set()
    await until(lambda: len(plane.claims) == SLOTS_HEAVY + 1)
    assert used(plane.claims[-1]) == [SLOTS_HEAVY]


async def test_work_that_does_not_fit_is_not_asked_for_again_and_a_later_attempt_is() -> None:
    refused = Reply("accepted", "c", result={"work_id": "w1", "refused": "DEVICE_MEMORY_SHORT", "message": "full"})
    plane, meter = Plane(refused), Meter()
    duty = dispatcher(plane, meter)
    assert duty.offer(offer("load"))
    await until(lambda: not duty._in_hand)
    assert not duty.offer(offer("load"))
    assert duty.offer(offer("load", attempt=2))
    await until(lambda: len(plane.claims) == 2)


async def test_a_measurement_that_fails_costs_one_try_and_not_the_worker() -> None:
    plane, meter = Plane(), Meter()
    meter.error = RuntimeError("a driver's own way to fail")
    duty = dispatcher(plane, meter)
    assert duty.offer(offer("load"))
    await until(lambda: not duty._in_hand)
    assert plane.claims == []
    meter.error = None
    assert duty.offer(offer("load"))  # offered again by a beat
    await until(lambda: len(plane.claims) == 1)
    assert used(plane.claims[0]) == [0]


async def test_a_session_measures_its_own_devices_for_what_a_beat_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install("h100", monkeypatch)
    plane = Plane()
    plane.offers = [offer("load"), offer("drain", "w2")]
    settings = WorkerSettings(
        nats_url="", node_id="gpu-1", credential="c" * 16, artifact_root=tmp_path, data_dir=tmp_path
    )
    environment = RuntimeEnvironment("3.11", "linux", "0", {}, {}, [Device("cpu", 0, "x86"), Device("cuda", 0, "H100")])
    granted = Granted("7", 60_000, 1_000, 30_000, local_ms())
    decoys: Any = type("Decoys", (), {"targets": None})()
    session = Session(
        settings, Client(), plane, granted, Ed25519PrivateKey.generate(), "boot", environment, decoys, NOBODY
    )
    await session.beat_step()
    await until(lambda: len(plane.claims) == 2)
    told = {claim.work_id: claim.devices for claim in plane.claims}
    assert [(each.index, each.total_bytes) for each in told["w1"]] == [(0, H100)]
    assert told["w2"] == []
    assert {claim.generation for claim in plane.claims} == {"7"}
    assert driver.looks >= 1
    await session._devices.close()
