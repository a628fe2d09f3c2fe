"""Tailing the log: read on from a position, woken by the bus, never trusting it.

The wake-up carries a position and nothing else, so a forged, lost or reordered one can at worst cost a
read or POLL_S of delay. Events always come from the log. A position that the log does not have (it was put back, say)
costs one read as well: after a read that found nothing, nothing more is known of.
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
        self._told = 0  # the last position heard of
        self._more = True  # whether the last read may have left some
        self._woken = asyncio.Event()

    async def listen(self, nc: Client) -> None:
        async def wake(message: Msg) -> None:
            with contextlib.suppress(ValueError):  # not a number: not a hint
                self.wake(int(message.data))

        await nc.subscribe(subjects.WAKE, cb=wake)

    def wake(self, position: int) -> None:
        """Somebody says that the log goes up to `position`."""
        self._told = position
        self._woken.set()

    async def next(self, after: int) -> list[LogRow]:
        """Events after `after`; waits, at most POLL_S, where none is known of. May return [].

        Each call gives the loop a turn: a log that is read in the loop gives it none, and while a long log is read
        there would be none for signals and for the bus.
        """
        await asyncio.sleep(0)
        if self._told <= after and not self._more:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), POLL_S)
        self._woken.clear()
        rows = await self._log.read(after, ROWS_MAX)
        self._more = len(rows) == ROWS_MAX
        if not rows:
            self._told = after  # whoever tells of more while we read has set `_woken`
        return rows
