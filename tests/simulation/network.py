"""The network of a story: what happens to each message on its way, and to who is about to do something.

All from the story's seed. `loss`, `duplication` and `reordering` are shares of messages, `slow` multiplies every delay.
`hints_lost` drops what is only a hint (wake-ups of tailing readers, offers of work); nothing may depend on those.
`acks_lost` is the share of JetStream acknowledgements that do not arrive, so that messages come again.
"""

from __future__ import annotations

import collections
import contextvars
import random

from schemas import subjects
from tests.simulation.loop import Process, SimLoop

DELAY_S = (0.0001, 0.002)
CRASH_SHARE = 0.03  # of the effects of a process under `crash at effect`
HINTS = (subjects.WAKE, subjects.WAKE_VIEW, f"{subjects.WORK}.")


class SimNetwork:
    """As wire.Network."""

    def __init__(self, loop: SimLoop, rng: random.Random, coverage: collections.Counter[str]) -> None:
        self._loop, self._rng, self._coverage = loop, rng, coverage
        self.crashing: set[str] = set()  # names of processes
        self.mend()

    def mend(self) -> None:
        self.loss = self.duplication = self.reordering = self.acks_lost = 0.0
        self.slow = 1.0
        self.hints_lost = False
        self.crashing.clear()

    def delay_s(self) -> float:
        return self._rng.uniform(*DELAY_S) * self.slow

    def copies(self, process: Process, subject: str) -> int:
        if self.hints_lost and subject.startswith(HINTS):
            self._coverage["hint lost"] += 1
            return 0
        lost = self.acks_lost if subject == "ack" else self.loss
        if lost and self._rng.random() < lost:
            return 0
        return 2 if self.duplication and self._rng.random() < self.duplication else 1

    def reorders(self) -> bool:
        return bool(self.reordering) and self._rng.random() < self.reordering

    def effect(self, process: Process | None, what: str) -> None:
        if process is None or process.name not in self.crashing or not process.alive:
            return
        if self._rng.random() < CRASH_SHARE:
            self._coverage[f"crash at {what.split()[0]}"] += 1
            self._loop.call_soon(self._loop.kill, process, context=contextvars.Context())
