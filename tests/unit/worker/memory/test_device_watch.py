"""Looks at devices that a driver may hang in: bounded, one at a time, with the reason where there is none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from schemas.evidence import Reading
from worker.launch.processes import identify
from worker.memory import device_watch
from worker.memory.accelerator import DeviceLook, NoAccelerator
from worker.memory.attribution import NOT_LISTED
from worker.memory.device_watch import DeviceWatch

SECONDS_MAX = 10.0


class Card:
    """An accelerator whose driver can be held up, and which counts the threads that ask it."""

    def __init__(self, *indices: int) -> None:
        self.indices: Sequence[int] = indices or (0,)
        self.used = 0
        self.asked = 0
        self.at_once = 0
        self.at_once_max = 0
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None

    def look(self) -> list[DeviceLook]:
        self.asked += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        assert self.free.wait(SECONDS_MAX)
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        return [DeviceLook(index, Reading(100), Reading(self.used)) for index in self.indices]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not reached():  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "LOOK_SECONDS_MAX", 0.05)


async def test_a_reading_is_fresh_and_the_last_one_has_an_age() -> None:
    card = Card()
    watch = DeviceWatch(card)
    assert watch.last() == ([], None)
    card.used = 7
    assert [each.used_bytes for each in await watch.read()] == [7]
    card.used = 9
    readings, age_ms = watch.last()
    assert ([each.used_bytes for each in readings], age_ms is not None) == ([7], True)
    assert 0 <= (age_ms or 0) < SECONDS_MAX * 1_000
    assert [each.used_bytes for each in await watch.read()] == [9]


@pytest.mark.usefixtures("short")
async def test_a_driver_that_hangs_is_waited_for_a_bounded_time_by_one_thread() -> None:
    card = Card()
    card.free.clear()
    watch = DeviceWatch(card)
    for _ in range(3):
        (reading,) = await watch.read()
        assert (reading.used_bytes, reading.total_bytes) == (None, None)
        assert "has not answered within 0.05 s" in (reading.unavailable or "")
    assert (card.asked, card.at_once_max) == (1, 1)
    card.free.set()
    async with asyncio.timeout(SECONDS_MAX):
        while (await watch.read())[0].used_bytes is None:
            pass
    assert card.at_once_max == 1


async def test_a_look_begins_after_it_was_asked_for() -> None:
    card = Card()
    watch = DeviceWatch(card)
    card.free.clear()
    first = asyncio.create_task(watch.look())
    await until(lambda: card.asked == 1)
    second = asyncio.create_task(watch.look())
    await asyncio.sleep(0)
    assert card.asked == 1
    card.used = 5
    card.free.set()
    await first
    assert (await second)[0].used.bytes == 5
    assert (card.asked, card.at_once_max) == (2, 1)


async def test_whatever_a_library_raises_is_a_reason() -> None:
    card = Card(0, 1)
    card.error = OSError("libnvidia-ml.so.1: cannot open")
    looks = await DeviceWatch(card).look()
    assert [each.used.unavailable for each in looks] == ["OSError('libnvidia-ml.so.1: cannot open')"] * 2


async def test_a_device_that_the_node_lacks_is_said_to_be_none_of_its() -> None:
    watch = DeviceWatch(Card(0))
    assert (await watch.look_at(0)).used.bytes == 0
    assert (await watch.look_at(3)).used.unavailable == "this node has no CUDA device 3"


async def test_without_devices_nothing_is_asked_and_nothing_waited_for() -> None:
    watch = DeviceWatch(NoAccelerator())
    watch.refresh()
    assert (await watch.read(), await watch.look()) == ([], [])
    await watch.close()


async def test_refreshing_waits_for_nothing_and_does_not_pile_up() -> None:
    card = Card()
    card.used = 3
    card.free.clear()
    watch = DeviceWatch(card)
    for _ in range(10):
        watch.refresh()
        await asyncio.sleep(0)
    assert watch.last() == ([], None)
    card.free.set()
    await until(lambda: watch.last()[1] is not None)
    assert [each.used_bytes for each in watch.last()[0]] == [3]
    assert card.asked == 1
    await watch.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield made
    made.kill()
    made.wait()


async def test_a_model_that_is_on_a_device_is_expected_on_its_list_as_long_as_it_lives(
    process: subprocess.Popen[bytes],
) -> None:
    identity = identify(process.pid)
    assert identity is not None
    watch = DeviceWatch(Card(0, 1))
    watch.expect(identity, 1)
    first, second = await watch.read()
    assert (first.own_bytes, first.unattributed) == (0, None)
    assert (second.own_bytes, second.unattributed) == (None, NOT_LISTED)
    process.kill()
    process.wait()
    assert [each.own_bytes for each in await watch.read()] == [0, 0]
