"""Tailing the log: read on from a position, woken by the bus, never trusting it.

The wake-up carries a position and nothing else, so a forged, lost or reordered one can at worst cost a
read or POLL_S of delay. Events always come from the log.
"""

from __future__ import annotations

import asyncio
import contextlib

from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import subjects
from services.eventlog.port import EventLog, LogRow

POLL_S = 0.5
ROWS_MAX = 2_000  # rows per read


class Tail:
    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._woken = asyncio.Event()

    async def listen(self, nc: Client) -> None:
        async def wake(message: Msg) -> None:
            self._woken.set()

        await nc.subscribe(subjects.WAKE, cb=wake)

    def wake(self) -> None:
        self._woken.set()

    async def next(self, after: int) -> list[LogRow]:
        """Events after `after`; waits for a wake-up, at most POLL_S, where there are none. May return []."""
        self._woken.clear()
        rows = await self._log.read(after, ROWS_MAX)
        if rows:
            return rows
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), POLL_S)
        self._woken.clear()
        return await self._log.read(after, ROWS_MAX)
