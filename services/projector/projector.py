"""Fold the log into rows, in batches, exactly once.

States of recent streams are kept in memory; the rest is folded again from the log, only as far as the
tracked position. If the tracked position is not where it should be (another projector was faster, or the
tables were rebuilt), memory is dropped and the projector goes on from where the tables are.
"""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors
import structlog
from nats.aio.client import Client

from domain.folding.fold import fold
from domain.folding.states import State
from projections.project import Rows, project
from schemas import subjects
from schemas.events import decode_event
from services.eventlog.port import EventLog, LogRow, LogUnavailable
from services.eventlog.tail import Tail
from services.projector.store import ViewStore

STATES_MAX = 200_000
RETRY_S = 0.5

log = structlog.get_logger()


class Projector:
    def __init__(self, eventlog: EventLog, tail: Tail, store: ViewStore, nc: Client | None = None) -> None:
        self._log = eventlog
        self._tail = tail
        self._store = store
        self._nc = nc
        self._states: dict[str, State | None] = {}
        self.position: int | None = None
        self.stale = 0

    async def run(self) -> None:
        while True:
            await self.step()

    async def step(self) -> None:
        """Project one batch, or wait for one."""
        try:
            if self.position is None:
                self._states.clear()
                self.position = await self._store.prepare()
            rows = await self._tail.next(self.position)
            if rows:
                await self._take(rows, self.position)
        except LogUnavailable as error:
            log.warning("projector.log_unavailable", error=str(error))
            self.position = None
            await asyncio.sleep(RETRY_S)

    async def _take(self, batch: list[LogRow], expected: int) -> None:
        await self._load(batch, expected)
        rows: Rows = {}
        for row in batch:
            before = self._states.get(row.stream)
            after, reason = fold(before, decode_event(row.topic, row.state))
            if reason is not None:
                self.stale += 1
                continue
            self._states[row.stream] = after
            if after is not None:
                project(before, after, row.position, rows)
        position = batch[-1].position
        if not await self._store.write(rows, expected, position):
            log.warning("projector.position_moved", expected=expected)
            self.position = None
            return
        self.position = position
        if len(self._states) > STATES_MAX:
            for stream in list(self._states)[: len(self._states) - STATES_MAX]:
                del self._states[stream]
        if self._nc is not None:
            with contextlib.suppress(nats.errors.Error, OSError):  # a hint; queries poll as well
                await self._nc.publish(subjects.WAKE_VIEW, str(position).encode())

    async def _load(self, batch: list[LogRow], expected: int) -> None:
        """Fold, up to `expected`, the streams of the batch that are not in memory and do not begin in it."""
        wanted: set[str] = set()
        for row in batch:
            if row.stream in self._states or row.stream in wanted:
                continue
            if row.version == 1:
                self._states[row.stream] = None
            else:
                wanted.add(row.stream)
        if not wanted:
            return
        for stream in wanted:
            self._states[stream] = None
        for row in await self._log.read_streams(sorted(wanted), up_to=expected):
            self._states[row.stream], _ = fold(self._states[row.stream], decode_event(row.topic, row.state))
