"""The simulated PostgreSQL: a log that can be slow, away or full, and tables that survive their projector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from projections.project import Rows
from projections.rows import Row
from services.eventlog.memory import MemoryLog
from services.eventlog.port import Leader, LogRow, LogUnavailable, NewEvent, NewReceipt, Receipt
from tests.simulation.checkers.epochs import check_epoch
from tests.simulation.loop import PROCESS


class Disk:
    """What survives everything. `on_append` sees each new row at once, before anybody is told of it."""

    def __init__(self, now_ms: Callable[[], int], on_append: Callable[[LogRow], None]) -> None:
        self.log = MemoryLog(now_ms)
        self.tables: Rows = {}
        self.tracked = 0
        self.on_append = on_append
        self.away = False
        self.full = False
        self.lost_acks = 0.0

    def row(self, position: int) -> LogRow:
        return self.log._rows[position - 1]


class SimLog:
    """One process's connection to the log."""

    def __init__(self, disk: Disk, story: Any) -> None:
        self.disk, self.story = disk, story

    async def _reach(self) -> None:
        await asyncio.sleep(self.story.rng.uniform(0.0003, 0.003))
        if self.disk.away:
            await asyncio.sleep(0.5)
            if self.disk.away:
                raise LogUnavailable("simulated: the database is away")

    async def append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        await self._reach()
        self.story.effect(PROCESS.get(), "append")
        if self.disk.full and events:
            raise LogUnavailable("simulated: no space left on device")
        positions = await self._append(events, receipts, epoch)
        if self.story.rng.random() < self.disk.lost_acks:
            # The connection broke after the commit; the library sends the same append again.
            positions = await self._append(events, receipts, epoch)
        self.story.effect(PROCESS.get(), "appended")
        await asyncio.sleep(self.story.rng.uniform(0.0003, 0.003))
        return positions

    async def _append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        positions = await self.disk.log.append(events, receipts, epoch)
        if positions:
            self.story.check(check_epoch, epoch, (await self.disk.log.leader()).epoch)
        for position in positions:
            self.disk.on_append(self.disk.row(position))
        return positions

    async def read(self, after: int, limit: int) -> list[LogRow]:
        await self._reach()
        return await self.disk.log.read(after, limit)

    async def read_streams(self, streams: Sequence[str], up_to: int | None = None) -> list[LogRow]:
        await self._reach()
        return await self.disk.log.read_streams(streams, up_to)

    async def receipts(self, command_ids: Sequence[str]) -> dict[str, Receipt]:
        await self._reach()
        return await self.disk.log.receipts(command_ids)

    async def last_position(self) -> int:
        await self._reach()
        return await self.disk.log.last_position()

    async def leader(self) -> Leader:
        await self._reach()
        return await self.disk.log.leader()

    async def take_epoch(self, holder: str, expected: int | None = None) -> int | None:
        await self._reach()
        epoch = await self.disk.log.take_epoch(holder, expected)
        self.story.effect(PROCESS.get(), "epoch taken")
        return epoch

    async def renew_epoch(self, epoch: int) -> bool:
        await self._reach()
        return await self.disk.log.renew_epoch(epoch)

    async def close(self) -> None:
        """Nothing is held."""


class SimStore:
    """As services.projector.store.ViewStore: rows and position together, or neither."""

    def __init__(self, disk: Disk, story: Any) -> None:
        self.disk, self.story = disk, story

    async def _reach(self) -> None:
        await asyncio.sleep(self.story.rng.uniform(0.0003, 0.003))
        if self.disk.away:
            raise LogUnavailable("simulated: the database is away")

    async def prepare(self, *, rebuild: bool = False) -> int:
        await self._reach()
        if rebuild:
            self.disk.tables, self.disk.tracked = {}, 0
        return self.disk.tracked

    async def write(self, rows: Rows, expected: int, position: int) -> bool:
        await self._reach()
        self.story.effect(PROCESS.get(), "write")
        if self.disk.tracked != expected:
            return False
        written: dict[tuple[str, str], Row] = dict(rows)
        self.disk.tables.update(written)
        self.disk.tracked = position
        self.story.effect(PROCESS.get(), "written")
        return True
