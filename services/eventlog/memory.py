"""An EventLog in memory, for tests and simulation. Behaves as the Postgres one; the contract suite says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from services.eventlog.port import (
    Leader,
    LogRow,
    NewEvent,
    NewReceipt,
    Receipt,
    ReceiptExists,
    Superseded,
    VersionConflict,
)


class MemoryLog:
    def __init__(self, now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000) -> None:
        self._rows: list[LogRow] = []
        self._versions: dict[str, int] = {}
        self._receipts: dict[str, Receipt] = {}
        self._leader = Leader(0, "nobody", 0)
        self._said_ms = now_ms()
        self._now_ms = now_ms

    async def append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        if epoch != self._leader.epoch:
            raise Superseded(f"epoch {epoch} is over, {self._leader.epoch} holds")
        ids = [receipt.command_id for receipt in receipts]
        if len(set(ids)) != len(ids) or any(ident in self._receipts for ident in ids):
            raise ReceiptExists("a command id has a receipt already")
        seen = {(event.stream, event.version) for event in events}
        if len(seen) != len(events) or any(event.version <= self._versions.get(event.stream, 0) for event in events):
            raise VersionConflict("a stream has this version already")
        positions = []
        for event in events:
            position = len(self._rows) + 1
            self._rows.append(LogRow(position, *event))
            self._versions[event.stream] = event.version
            positions.append(position)
        for receipt in receipts:
            position_of = None if receipt.last_event is None else positions[receipt.last_event]
            self._receipts[receipt.command_id] = Receipt(receipt.body_sha256, receipt.outcome, position_of)
        return positions

    async def read(self, after: int, limit: int) -> list[LogRow]:
        return self._rows[after : after + limit]

    async def read_streams(self, streams: Sequence[str], up_to: int | None = None) -> list[LogRow]:
        wanted = set(streams)
        return [row for row in self._rows if row.stream in wanted and (up_to is None or row.position <= up_to)]

    async def receipts(self, command_ids: Sequence[str]) -> dict[str, Receipt]:
        return {ident: self._receipts[ident] for ident in command_ids if ident in self._receipts}

    async def last_position(self) -> int:
        return len(self._rows)

    async def leader(self) -> Leader:
        return self._leader._replace(silent_ms=self._now_ms() - self._said_ms)

    async def take_epoch(self, holder: str, expected: int | None = None) -> int | None:
        if expected is not None and expected != self._leader.epoch:
            return None
        self._leader = Leader(self._leader.epoch + 1, holder, 0)
        self._said_ms = self._now_ms()
        return self._leader.epoch

    async def renew_epoch(self, epoch: int) -> bool:
        if epoch != self._leader.epoch:
            return False
        self._said_ms = self._now_ms()
        return True

    async def close(self) -> None:
        return None
