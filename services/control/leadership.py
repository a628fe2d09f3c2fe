"""Leadership: which control plane is the active one, and for how long it may believe so.

The log holds the epoch and when its holder last said that it lives. The active one says so every third of
the term; one that stands by takes over when a whole term has passed in silence, and of several one wins. A
start under the same instance name takes over at once: it is the same control plane, back again.

The epoch makes an old writer's commits fail. But heartbeats are answered from memory, and an answer makes a
worker trust its session; so the active one also counts its own term, on a clock that goes on while the machine
is suspended, from before each renewal was sent, and answers no heartbeat once that is over (a process that was
stopped and goes on, say, or a machine that wakes up). A successor gives every session a full term from its own
start, which covers the last such answer.

One that the bus cannot be reached from leads nobody: after a term without it, it lets its leadership lapse, so that one
that has the bus takes over; and one that stands by takes nothing over while it has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from services.clock import Clock
from services.eventlog.port import EventLog, LogUnavailable, Superseded

RENEWALS_PER_TERM = 3
RETRY_S = 0.25  # where the log cannot be reached
MARGIN_SHARE = 0.1  # of the term, for the difference between two clocks' rates

log = structlog.get_logger()


class Leadership:
    """The holder's side: `run` renews until the epoch is over and then raises Superseded."""

    def __init__(
        self, eventlog: EventLog, clock: Clock, epoch: int, term_ms: int, taken_s: float, on_bus: Callable[[], bool]
    ) -> None:
        """`taken_s` is the clock's `elapsed_s` from before the epoch was asked for; `on_bus` whether there is a bus."""
        self._log = eventlog
        self._clock = clock
        self.epoch = epoch
        self._term_s = term_ms / 1000
        self._until_s = taken_s + self._term_s * (1 - MARGIN_SHARE)
        self._on_bus = on_bus
        self._bus_seen_s = taken_s

    def holds(self) -> bool:
        """Whether nobody else can have taken over yet, by this process's own clock."""
        return self._clock.elapsed_s() < self._until_s

    async def run(self) -> None:
        while True:
            renewed = await self.step()
            await asyncio.sleep(self._term_s / RENEWALS_PER_TERM if renewed else _retry_s(self._term_s))

    async def step(self) -> bool:
        """Renew once; False where the log, or for a term the bus, is away. That ends nothing yet: the term does."""
        asked_s = self._clock.elapsed_s()
        if self._on_bus():
            self._bus_seen_s = asked_s
        elif asked_s - self._bus_seen_s > self._term_s:
            log.warning("leadership.bus_unreachable", since_s=round(asked_s - self._bus_seen_s))
            return False
        try:
            renewed = await self._log.renew_epoch(self.epoch)
        except LogUnavailable as error:
            log.warning("leadership.log_unavailable", error=str(error))
            return False
        if not renewed:
            raise Superseded(f"epoch {self.epoch} is over")
        self._until_s = asked_s + self._term_s * (1 - MARGIN_SHARE)
        return True


def _retry_s(term_s: float) -> float:
    return min(term_s / RENEWALS_PER_TERM, RETRY_S)


async def become_leader(
    eventlog: EventLog, clock: Clock, instance: str, term_ms: int, on_bus: Callable[[], bool]
) -> Leadership:
    """Stand by until there is no other active control plane, then be it. Waits without end: that is its work."""
    told = False
    while True:
        pause_s = term_ms / 1000 / RENEWALS_PER_TERM
        try:
            leader = await eventlog.leader()
            free = leader.epoch == 0 or leader.holder == instance or leader.silent_ms > term_ms
            if free and on_bus():
                asked_s = clock.elapsed_s()
                epoch = await eventlog.take_epoch(instance, expected=leader.epoch)
                if epoch is not None:
                    log.info("leadership.taken", epoch=epoch, from_holder=leader.holder, silent_ms=leader.silent_ms)
                    return Leadership(eventlog, clock, epoch, term_ms, asked_s, on_bus)
        except LogUnavailable as error:
            log.warning("leadership.log_unavailable", error=str(error))
            pause_s = _retry_s(term_ms / 1000)
        else:
            if not told:
                log.info("leadership.standing_by", holder=leader.holder, epoch=leader.epoch)
                told = True
        await asyncio.sleep(pause_s)
