"""Leadership: for how long the active control plane may believe that it is the only one; its clock never stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from services.clock import SystemClock, boot_ns
from services.control.leadership import MARGIN_SHARE, Leadership, become_leader
from services.eventlog.memory import MemoryLog
from services.eventlog.port import Superseded
from tests.unit.control.faulty import FaultyLog
from worker.cancellation import end_tasks

TERM_MS = 4_000
FOUND_S_MAX = 2.0
HOLDS_S = TERM_MS / 1_000 * (1 - MARGIN_SHARE)


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at_s = 50.0

    def elapsed_s(self) -> float:
        return self.at_s

    def now_ms(self) -> int:
        raise AssertionError("a jump of the wall clock must not end or stretch a term")

    def not_before(self, at_ms: int) -> None:
        raise AssertionError("a jump of the wall clock must not end or stretch a term")


async def leading(log: FaultyLog, clock: Hands, on_bus: Callable[[], bool] = lambda: True) -> Leadership:
    return await become_leader(log, clock, "one", TERM_MS, on_bus)


async def test_without_the_bus_for_a_term_it_lapses_and_comes_back_with_it() -> None:
    clock, log, bus = Hands(), FaultyLog(MemoryLog()), {"there": True}
    leadership = await leading(log, clock, lambda: bus["there"])
    bus["there"] = False
    clock.at_s += TERM_MS / 1_000
    assert await leadership.step()  # a restart of the bus costs nothing
    clock.at_s += 0.001
    assert not await leadership.step()
    clock.at_s += HOLDS_S
    assert not leadership.holds()
    bus["there"] = True
    assert await leadership.step()
    assert leadership.holds()


async def test_who_has_no_bus_takes_nothing_over() -> None:
    clock, log, bus = Hands(), FaultyLog(MemoryLog()), {"there": False}
    standing_by = asyncio.create_task(leading(log, clock, lambda: bus["there"]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(standing_by), 0.05)
    assert (await log.leader()).epoch == 0
    bus["there"] = True
    assert (await asyncio.wait_for(standing_by, TERM_MS / 1_000)).epoch == 1


async def test_it_holds_for_its_term_and_no_longer_while_the_machine_sleeps() -> None:
    clock = Hands()
    leadership = await leading(FaultyLog(MemoryLog()), clock)
    assert leadership.holds()
    clock.at_s += HOLDS_S - 0.001
    assert leadership.holds()
    clock.at_s += 0.002  # the loop's own clock saw nothing of this
    assert not leadership.holds()
    await leadership.step()  # awake again, and nobody took over
    assert leadership.holds()


async def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    clock = Hands()

    class Slow(FaultyLog):
        async def renew_epoch(self, epoch: int) -> bool:
            clock.at_s += 1.0
            return await super().renew_epoch(epoch)

    leadership = await leading(Slow(MemoryLog()), clock)
    await leadership.step()
    clock.at_s += HOLDS_S - 1.0 - 0.001
    assert leadership.holds()
    clock.at_s += 0.002
    assert not leadership.holds()


async def test_a_log_that_is_away_renews_nothing_and_ends_nothing() -> None:
    clock, log = Hands(), FaultyLog(MemoryLog())
    leadership = await leading(log, clock)
    log.down = True
    clock.at_s += HOLDS_S / 2
    await leadership.step()
    assert leadership.holds()
    clock.at_s += HOLDS_S / 2 + 0.001
    await leadership.step()
    assert not leadership.holds()


async def test_a_log_that_is_back_is_found_long_before_the_next_renewal_would_be_due() -> None:
    class Heard(FaultyLog):
        def __init__(self) -> None:
            super().__init__(MemoryLog())
            self.asked, self.renewed = asyncio.Event(), asyncio.Event()

        async def renew_epoch(self, epoch: int) -> bool:
            self.asked.set()
            renewed = await super().renew_epoch(epoch)
            self.renewed.set()
            return renewed

    log = Heard()
    leadership = await become_leader(log, SystemClock(), "one", 600_000, lambda: True)
    log.down = True
    running = asyncio.create_task(leadership.run())
    for _ in range(2):  # in vain
        await asyncio.wait_for(log.asked.wait(), FOUND_S_MAX)
        log.asked.clear()
    assert not log.renewed.is_set()
    log.down = False
    await asyncio.wait_for(log.renewed.wait(), FOUND_S_MAX)
    await end_tasks([running])


async def test_an_epoch_that_is_over_raises_though_the_clock_says_it_holds() -> None:
    log = FaultyLog(MemoryLog())
    leadership = await leading(log, Hands())
    assert await log.take_epoch("two") == leadership.epoch + 1
    with pytest.raises(Superseded):
        await leadership.step()


def test_the_control_planes_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC would stand still, so asking for any other clock fails here."""
    reading_ns = {time.CLOCK_BOOTTIME: 10**12}
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: reading_ns[clock])
    for name in ("monotonic", "monotonic_ns", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: pytest.fail("stands still while suspended"))
    assert boot_ns() == 10**12
    clock = SystemClock()
    before = clock.now_ms()
    reading_ns[time.CLOCK_BOOTTIME] += 3_600 * 10**9
    assert clock.now_ms() == before + 3_600_000
    assert clock.elapsed_s() == 1_000.0 + 3_600.0


def test_the_wall_clock_is_read_once_and_only_put_forward() -> None:
    at_ns = 5 * 10**9
    clock = SystemClock(lambda: at_ns)
    assert abs(clock.now_ms() - time.time_ns() // 1_000_000) < 10_000
    ahead = clock.now_ms() + 60_000
    clock.not_before(ahead)
    assert clock.now_ms() == ahead
    clock.not_before(ahead - 30_000)
    assert clock.now_ms() == ahead
    assert clock.elapsed_s() == 5.0  # a term is not counted on the time that is put forward
