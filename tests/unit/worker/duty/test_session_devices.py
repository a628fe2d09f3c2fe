"""A session's device readings: told in the live answer with their age, fresh in a claim, and never in a beat's way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.client import Client

from schemas.environments import Device, RuntimeEnvironment
from schemas.live import Beat, BeatReply
from tests.unit.worker.memory.recorded_driver import RecordedDriver, install
from worker.clock import local_ms
from worker.session import Granted, Session
from worker.settings import WorkerSettings

RESERVE = 512 * 1024 * 1024
SECONDS_MAX = 10.0
H100 = 85_520_809_984


class Plane:
    """The control plane's side of heartbeats. `beats` are what it was sent."""

    def __init__(self) -> None:
        self.beats: list[Beat] = []

    async def beat(self, beat: Beat, timeout_ms: float) -> BeatReply:
        self.beats.append(beat)
        return BeatReply(False, 60_000, 1_000, [], [], [], device_reserve_bytes=RESERVE)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> RecordedDriver:
    return install("h100", monkeypatch)


def session_on(plane: Plane, tmp_path: Path, *devices: Device) -> Session:
    settings = WorkerSettings(
        nats_url="", node_id="gpu-1", credential="c" * 16, artifact_root=tmp_path, data_dir=tmp_path
    )
    environment = RuntimeEnvironment("3.11", "linux", "0", {}, {}, list(devices))
    granted = Granted("7", 60_000, 1_000, 30_000, local_ms())
    # What is left out is not reached: a session that does not run has no connection and starts no process.
    nobody: Any = None
    client = Client()  # the bus's own, not connected
    other: Any = type("Nobody", (), {"targets": None})()
    control: Any = plane
    return Session(settings, client, control, granted, Ed25519PrivateKey.generate(), "boot", environment, other, nobody)


async def told(session: Session) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while session.live().devices_age_ms is None:  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0)


async def test_the_live_answer_has_the_last_reading_with_its_age_and_the_planes_reserve(
    driver: RecordedDriver, tmp_path: Path
) -> None:
    plane = Plane()
    session = session_on(plane, tmp_path, Device("cpu", 0, "x86"), Device("cuda", 0, "H100"))
    before = session.live()
    assert (before.devices, before.devices_age_ms, before.device_reserve_bytes) == ([], None, None)
    await session.beat_step()
    await told(session)
    answer = session.live()
    assert [(each.index, each.total_bytes) for each in answer.devices] == [(0, H100)]
    assert 0 <= (answer.devices_age_ms or 0) < SECONDS_MAX * 1_000
    assert (answer.device_reserve_bytes, answer.generation) == (RESERVE, "7")
    assert plane.beats[0].devices == []


async def test_a_beat_does_not_wait_for_a_driver_that_hangs(
    driver: RecordedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    look = driver._functions["nvmlInitWithFlags"]

    def hang(flags: int) -> int:
        assert answers.wait(SECONDS_MAX)
        return look(flags)

    driver._functions["nvmlInitWithFlags"] = hang
    plane = Plane()
    session = session_on(plane, tmp_path, Device("cuda", 0, "H100"))
    for _ in range(3):
        await session.beat_step()
    assert (len(plane.beats), session.live().devices_age_ms) == (3, None)
    answers.set()
    await told(session)
    assert driver.looks == 1


async def test_without_devices_there_is_no_reading_and_no_age(tmp_path: Path) -> None:
    session = session_on(Plane(), tmp_path, Device("cpu", 0, "x86"))
    await session.beat_step()
    answer = session.live()
    assert (answer.devices, answer.devices_age_ms, answer.device_reserve_bytes) == ([], None, RESERVE)
