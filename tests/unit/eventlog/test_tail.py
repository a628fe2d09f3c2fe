"""Tailing waits where nothing is known of, whatever it was told, and never keeps the loop to itself."""

from __future__ import annotations

import asyncio

from services.eventlog.memory import MemoryLog
from services.eventlog.port import LogRow, NewEvent
from services.eventlog.tail import ROWS_MAX, Tail

TURNS = 20  # of the loop: far more than a call needs that has nothing to wait for
FAR = 10**9


class CountedLog(MemoryLog):
    """Read in the loop, as the relay's and the projector's are: a read gives nobody a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    async def read(self, after: int, limit: int) -> list[LogRow]:
        self.reads += 1
        return await super().read(after, limit)

    async def extend(self, count: int) -> None:
        epoch = (await self.leader()).epoch or await self.take_epoch("test") or 0
        first = await self.last_position() + 1
        events = [NewEvent(f"node-{first + n}", 1, "node.enabled.v1", b"{}") for n in range(count)]
        await self.append(events, [], epoch)


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_a_position_that_the_log_does_not_have_costs_one_read() -> None:
    log = CountedLog()
    await log.extend(3)
    tail = Tail(log)
    assert len(await tail.next(0)) == 3
    tail.wake(FAR)  # the last commits were lost with the disk, and somebody had told of them
    assert await tail.next(3) == []
    waiting = asyncio.create_task(tail.next(3))
    await turns()
    assert not waiting.done()
    assert log.reads == 2
    await log.extend(1)
    tail.wake(4)
    assert [row.position for row in await waiting] == [4]


async def test_what_is_told_while_a_read_finds_nothing_is_looked_for_at_once() -> None:
    log = CountedLog()
    tail = Tail(log)
    read = log.read

    async def told_meanwhile(after: int, limit: int) -> list[LogRow]:
        rows = await read(after, limit)
        if not rows:
            await log.extend(1)
            tail.wake(1)
        return rows

    log.read = told_meanwhile  # type: ignore[method-assign]
    assert await tail.next(0) == []
    found = asyncio.create_task(tail.next(0))
    await turns()
    assert found.done()
    assert [row.position for row in found.result()] == [1]


async def test_reading_a_long_log_gives_the_loop_its_turns() -> None:
    """A signal, or a message of the bus, comes in between two batches."""
    log, rounds, turned = CountedLog(), 5, 0
    await log.extend(rounds * ROWS_MAX)
    tail = Tail(log)

    async def somebody_else() -> None:
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(somebody_else())
    position = 0
    for _ in range(rounds):
        position = (await tail.next(position))[-1].position
    other.cancel()
    assert turned >= rounds
