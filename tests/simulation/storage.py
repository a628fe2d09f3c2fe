"""The simulated PostgreSQL: a log that can be away, full or slow to commit, and tables that outlive their projector."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from projections.project import Rows
from projections.rows import Row
from services.eventlog.memory import MemoryLog
from services.eventlog.port import Leader, LogRow, LogUnavailable, NewEvent, NewReceipt, Receipt
from tests.simulation.loop import PROCESS, SimLoop
from tests.simulation.network import SimNetwork

LATENCY_S = (0.0003, 0.003)
AWAY_S = 0.5  # until a connection to a database that is away is given up
STALL_TICK_S = 0.05


class Disk:
    """What survives everything. The callbacks see each change at once, before anybody is told of it."""

    def __init__(self, loop: SimLoop, network: SimNetwork, rng: random.Random) -> None:
        self.network, self.rng = network, rng
        self.log = MemoryLog(lambda: int(loop.time() * 1_000))
        self.tables: Rows = {}
        self.tracked = 0
        self.on_append: Callable[[Sequence[LogRow], Sequence[NewReceipt], int, int], None] = lambda *_: None
        self.on_write: Callable[[Rows, int, int], None] = lambda *_: None
        self.mend()

    def mend(self) -> None:
        self.away = self.full = self.stalled = False
        self.lost_acks = 0.0

    @property
    def reachable(self) -> bool:
        """Whether events can be committed now."""
        return not (self.away or self.full or self.stalled)

    async def reach(self) -> None:
        """There and in: LogUnavailable where the database is away."""
        await asyncio.sleep(self.rng.uniform(*LATENCY_S))
        if self.away:
            await asyncio.sleep(AWAY_S)
            if self.away:
                raise LogUnavailable("simulated: the database is away")

    async def sync(self) -> None:
        """A commit waits for the disk."""
        while self.stalled:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(STALL_TICK_S)


class SimLog:
    """One process's connection to the log."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    async def append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        disk = self.disk
        await disk.reach()
        disk.network.effect(PROCESS.get(), "append")
        await disk.sync()
        if disk.full and events:
            raise LogUnavailable("simulated: no space left on device")
        positions = await self._append(events, receipts, epoch)
        if disk.rng.random() < disk.lost_acks:
            # The connection broke after the commit; the library sends the same append again.
            positions = await self._append(events, receipts, epoch)
        disk.network.effect(PROCESS.get(), "appended")
        await asyncio.sleep(disk.rng.uniform(*LATENCY_S))
        return positions

    async def _append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        log = self.disk.log
        positions = await log.append(events, receipts, epoch)
        rows = log._rows[positions[0] - 1 : positions[-1]] if positions else []
        self.disk.on_append(rows, receipts, epoch, log._leader.epoch)
        return positions

    async def read(self, after: int, limit: int) -> list[LogRow]:
        await self.disk.reach()
        return await self.disk.log.read(after, limit)

    async def read_streams(self, streams: Sequence[str], up_to: int | None = None) -> list[LogRow]:
        await self.disk.reach()
        return await self.disk.log.read_streams(streams, up_to)

    async def receipts(self, command_ids: Sequence[str]) -> dict[str, Receipt]:
        await self.disk.reach()
        return await self.disk.log.receipts(command_ids)

    async def last_position(self) -> int:
        await self.disk.reach()
        return await self.disk.log.last_position()

    async def leader(self) -> Leader:
        await self.disk.reach()
        return await self.disk.log.leader()

    async def take_epoch(self, holder: str, expected: int | None = None) -> int | None:
        await self.disk.reach()
        await self.disk.sync()
        epoch = await self.disk.log.take_epoch(holder, expected)
        self.disk.network.effect(PROCESS.get(), "epoch taken")
        return epoch

    async def renew_epoch(self, epoch: int) -> bool:
        await self.disk.reach()
        await self.disk.sync()
        return await self.disk.log.renew_epoch(epoch)

    async def close(self) -> None:
        """Nothing is held."""


class SimStore:
    """As services.projector.store.ViewStore: rows and position together, or neither."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    async def prepare(self, *, rebuild: bool = False) -> int:
        await self.disk.reach()
        if rebuild:
            raise NotImplementedError("no story rebuilds tables while it goes on")
        return self.disk.tracked

    async def write(self, rows: Rows, expected: int, position: int) -> bool:
        disk = self.disk
        await disk.reach()
        disk.network.effect(PROCESS.get(), "write")
        await disk.sync()
        if disk.tracked != expected:
            return False
        written: dict[tuple[str, str], Row] = dict(rows)
        disk.tables.update(written)
        disk.tracked = position
        disk.on_write(written, expected, position)
        disk.network.effect(PROCESS.get(), "written")
        return True
