"""The memory of one simulated CUDA device: what model processes hold, and what others take and give back at any time.

The driver lists processes as NVML does: with what each holds, by the pids of the machine. In a container those are
not the ones that a worker sees. What an ended process held is free at once or, at times, a moment later; meanwhile it
is in use by nobody who is listed. `readings` are what was told to workers, for the checkers.
"""

from __future__ import annotations

import collections
import contextvars
import itertools
import random
from typing import NamedTuple

from schemas.evidence import Reading
from tests.simulation.loop import Process, SimLoop
from tests.simulation.scenario import Scenario
from worker.memory.accelerator import DeviceLook, unmeasured

INDEX = 0
FOREIGN_PIDS_FROM = 500_000
CONTAINER_SHIFT = 1_000_000  # from the pids in here to the machine's
LINGER_SHARE, LINGER_S = 0.3, 1.5
READINGS_KEPT = 64
FOREIGN_SHARE = (0.2, 0.95)  # of the device


class Told(NamedTuple):
    """What one look told, and when."""

    at_s: float
    total_bytes: int | None  # None where it could not be measured
    used_bytes: int | None


class Taken(NamedTuple):
    """That somebody took memory: a worker's model process, or nobody's of ours."""

    at_s: float
    worker: Process | None
    bytes: int


class SimDevice:
    def __init__(self, loop: SimLoop, rng: random.Random, scenario: Scenario) -> None:
        self._loop, self._rng = loop, rng
        self._shift = CONTAINER_SHIFT if scenario.contained else 0
        self._pids = itertools.count(FOREIGN_PIDS_FROM)
        self.total_bytes = scenario.device_bytes
        self._held: dict[int, int] = {}
        self._lingering = 0
        self.driver_fails = False
        self.taken: list[Taken] = []
        self.readings: collections.deque[Told] = collections.deque(maxlen=READINGS_KEPT)

    @property
    def used_bytes(self) -> int:
        return sum(self._held.values()) + self._lingering

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def take(self, pid: int, worker: Process | None, amount: int) -> bool:
        """More for this process; False where there is not enough."""
        if amount > self.free_bytes:
            return False
        self._held[pid] = self._held.get(pid, 0) + amount
        self.taken.append(Taken(self._loop.time(), worker, amount))
        return True

    def give_back(self, pid: int) -> None:
        """The process has ended."""
        amount = self._held.pop(pid, 0)
        if amount and self._rng.random() < LINGER_SHARE:
            self._lingering += amount
            self._loop.call_later(self._rng.uniform(0.0, LINGER_S), self._freed, amount, context=contextvars.Context())

    def _freed(self, amount: int) -> None:
        self._lingering -= amount

    def take_foreign(self) -> int:
        """A process that is not ours takes what it can get of what it wants; its pid."""
        pid = next(self._pids)
        wanted = int(self.total_bytes * self._rng.uniform(*FOREIGN_SHARE))
        self.take(pid, None, min(wanted, self.free_bytes))
        return pid

    def mend(self) -> None:
        self.driver_fails = False
        for pid in [pid for pid in self._held if pid >= FOREIGN_PIDS_FROM]:
            del self._held[pid]

    def look(self) -> DeviceLook:
        if self.driver_fails:
            self.readings.append(Told(self._loop.time(), None, None))
            return unmeasured(INDEX, "simulated: the driver is lost")
        self.readings.append(Told(self._loop.time(), self.total_bytes, self.used_bytes))
        held: dict[int, int | None] = {pid + self._shift: amount for pid, amount in self._held.items()}
        return DeviceLook(INDEX, Reading(bytes=self.total_bytes), Reading(bytes=self.used_bytes), held)


class SimAccelerator:
    """As worker.memory.accelerator.Accelerator, of a node with one device."""

    indices = (INDEX,)

    def __init__(self, device: SimDevice) -> None:
        self._device = device

    def look(self) -> list[DeviceLook]:
        return [self._device.look()]
