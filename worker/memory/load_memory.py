"""The memory of one load, from before the weights until after the process's end, as evidence.

    prepared -> [before] -> weights, health -> [loaded] ... [before the unload] -> dropped -> exit -> [after]

Four instruments, none of which stands in for another: the process's PSS, the runtime's allocator (told by the model
process, see `worker.memory.allocator`), the driver's count of the device, and the kernel's memory cgroup. What came
back is said twice: `allocator_reclaimed` is what dropping the model gave back to the device, `reclaimed` what the
process's end gave back to the machine. Reclaim is complete when the process is gone and, on a device, the driver's
count shows it (`worker.memory.reclaim`); where that cannot be measured it is not complete, and the reason is said.
"""

from __future__ import annotations

import asyncio
import time

from schemas.evidence import Memory, Reading
from schemas.profiles import RuntimeProfile
from worker.launch.processes import Identity
from worker.memory.allocator import NOT_ON_CPU, AllocatorReading
from worker.memory.attribution import child_pids
from worker.memory.cgroup import HostMemory, read_host_memory
from worker.memory.device_watch import DeviceWatch
from worker.memory.measure import private_bytes, process_bytes
from worker.memory.reclaim import (
    SETTLE_POLL_SECONDS,
    SETTLE_SECONDS_MAX,
    DeviceUse,
    Verdict,
    judge,
    use_after,
    use_of,
)

NOT_ASKED = AllocatorReading(unavailable="the model process was not asked")
NOT_ANSWERED = AllocatorReading(unavailable="the model process did not answer")
STILL_LOADED = "the model is still loaded"
STILL_THERE = "the model's process has not ended"


class LoadMemory:
    """The readings of one load as they come in; `memory` makes evidence of them at any stage."""

    def __init__(self, profile: RuntimeProfile, identity: Identity, devices: DeviceWatch) -> None:
        self._index = profile.device_index if profile.device == "cuda" else None
        self._identity = identity
        self._devices = devices
        self._process_before = self._process_loaded = self._private_loaded = Reading(unavailable="not sampled")
        self.process_peak = Reading(unavailable="not sampled")
        self._before = self._loaded = DeviceUse()
        self._allocator_before = self._allocator_loaded = self._allocator_after = self._not_yet()
        self._host = HostMemory(Reading(unavailable="not loaded"), Reading(unavailable="not loaded"))

    def _not_yet(self) -> AllocatorReading:
        return AllocatorReading(unavailable=NOT_ON_CPU) if self._index is None else NOT_ASKED

    async def before(self, allocator: AllocatorReading) -> None:
        """The runtime is imported, no weights are read."""
        self._process_before, self._allocator_before = await asyncio.to_thread(process_bytes, self._identity), allocator
        self._before = await self._use(loaded=False)

    async def loaded(self, process: Reading, allocator: AllocatorReading) -> None:
        """Loaded and healthy: the first inference is what makes a runtime touch all it needs."""
        self._process_loaded, self._allocator_loaded = process, allocator
        self._private_loaded = await asyncio.to_thread(private_bytes, self._identity)
        self._loaded, self._host = await self._use(loaded=True), read_host_memory()
        if self._index is not None:
            self._devices.expect(self._identity, self._index)

    async def before_unload(self) -> None:
        """What it holds now, not when it was loaded, is what is to be given back."""
        now = await asyncio.to_thread(process_bytes, self._identity)
        if now.bytes:
            self._process_loaded = now
            self._private_loaded = await asyncio.to_thread(private_bytes, self._identity)
            if now.bytes > (self.process_peak.bytes or 0):
                self.process_peak = now  # it was seen, too
            self._loaded = await self._use(loaded=True)

    def dropped(self, before: AllocatorReading, after: AllocatorReading) -> None:
        """What the allocator held just before the model was dropped, and just after."""
        self._allocator_loaded, self._allocator_after = before, after

    def not_dropped(self) -> None:
        """The process ended without having answered the unload."""
        self._allocator_after = NOT_ANSWERED if self._index is not None else self._not_yet()

    async def _use(self, *, loaded: bool) -> DeviceUse:
        if self._index is None:
            return DeviceUse()
        look = await self._devices.look_at(self._index)
        contained = self._devices.contained
        return use_of(look, self._identity.pid, child_pids(), contained=contained, loaded=loaded)

    def while_loaded(self) -> Memory:
        why = Reading(unavailable=STILL_LOADED)
        after = DeviceUse() if self._index is None else DeviceUse(why, why, why, why, why)
        return self._memory(why, why, after, Verdict(False, STILL_LOADED), 0.0)

    async def after_exit(self) -> Memory:
        """Looks again until the driver shows that the memory came back, at most SETTLE_SECONDS_MAX."""
        begun = time.perf_counter()
        deadline = begun + SETTLE_SECONDS_MAX
        while True:
            process_after = process_bytes(self._identity)
            after, verdict = await self._judged(process_after)
            if verdict.settled or time.perf_counter() >= deadline:
                break
            await asyncio.sleep(SETTLE_POLL_SECONDS)
        waited_ms = (time.perf_counter() - begun) * 1_000.0
        return self._memory(process_after, _less(self._private_loaded, process_after), after, verdict, waited_ms)

    async def _judged(self, process_after: Reading) -> tuple[DeviceUse, Verdict]:
        if self._index is None:
            gone = process_after.bytes == 0
            return DeviceUse(), Verdict(gone, "" if gone else process_after.unavailable or STILL_THERE)
        look = await self._devices.look_at(self._index)
        after = use_after(look, self._identity.pid, child_pids(), self._loaded)
        if process_after.bytes != 0:
            return after, Verdict(False, process_after.unavailable or STILL_THERE)
        return after, judge(self._loaded, after, self._allocator_loaded.reserved_bytes)

    def _memory(
        self, process_after: Reading, reclaimed: Reading, after: DeviceUse, verdict: Verdict, waited_ms: float
    ) -> Memory:
        loaded, dropped = self._allocator_loaded, self._allocator_after
        return Memory(
            process_before=self._process_before,
            process_peak=self.process_peak,
            process_loaded=self._process_loaded,
            process_private_loaded=self._private_loaded,
            process_after=process_after,
            allocator_loaded=_reading(loaded, loaded.allocated_bytes),
            allocator_after=_reading(dropped, dropped.allocated_bytes),
            device_used_before=self._before.used,
            device_used_loaded=self._loaded.used,
            device_used_after=after.used,
            device_external=self._loaded.external,
            reclaimed=reclaimed,
            reclaim_complete=verdict.complete,
            allocator_before=_reading(self._allocator_before, self._allocator_before.allocated_bytes),
            allocator_peak=_reading(loaded, loaded.peak_bytes),
            allocator_reserved_loaded=_reading(loaded, loaded.reserved_bytes),
            allocator_reserved_after=_reading(dropped, dropped.reserved_bytes),
            allocator_reclaimed=_less(
                _reading(loaded, loaded.reserved_bytes), _reading(dropped, dropped.reserved_bytes)
            ),
            device_total=self._loaded.total,
            device_own_loaded=self._loaded.own,
            device_own_after=after.own,
            cgroup_limit=self._host.limit,
            cgroup_current=self._host.current,
            reclaim_waited_ms=waited_ms,
            reclaim_reason=verdict.reason,
        )


def _reading(said: AllocatorReading, count: int | None) -> Reading:
    return Reading(unavailable=said.unavailable or "not told") if count is None else Reading(bytes=count)


def _less(before: Reading, after: Reading) -> Reading:
    """What was held before and no longer is; unavailable where either is."""
    if before.bytes is None or after.bytes is None:
        return before if before.bytes is None else after
    return Reading(bytes=max(before.bytes - after.bytes, 0))
