"""Measures memory: of own processes by PSS, of a CUDA device by NVML.

What can't be measured is a Reading with the reason, never 0. A process that has ended (pid and start
time) holds 0 bytes; that is a measurement. NVML is asked from the parent, which never imports an ML
runtime; in a container its pids can be others than ours, and then attribution is unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from msgspec import Struct

from schemas.evidence import Memory, Reading
from schemas.profiles import RuntimeProfile
from worker.model.processes import Identity, is_alive

SAMPLE_SECONDS = 0.1
DEVICE_SLACK_BYTES = 64 * 1024 * 1024  # a driver's own bookkeeping may move by this much around one load
NO_DEVICE = "the profile runs on cpu"
NO_ALLOCATOR = "the runtime counts no allocator bytes on cpu"
STILL_LOADED = "the model is still loaded"


def process_bytes(identity: Identity) -> Reading:
    """PSS of the process now; 0 when it has ended."""
    if not is_alive(identity):
        return Reading(bytes=0)
    try:
        with open(f"/proc/{identity.pid}/smaps_rollup", encoding="ascii") as rollup:
            for line in rollup:
                if line.startswith("Pss:"):
                    return Reading(bytes=int(line.split()[1]) * 1024)
    except ProcessLookupError:
        return Reading(bytes=0)
    except OSError as error:
        return Reading(unavailable=f"smaps_rollup: {error.strerror}")
    return Reading(unavailable="smaps_rollup has no Pss line")


class PeakSampler:
    """Samples one process's PSS every SAMPLE_SECONDS until closed. The peak is the highest seen sample."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._peak: Reading = Reading(unavailable="no sample was taken")
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while is_alive(self._identity):
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def sample(self) -> Reading:
        reading = process_bytes(self._identity)
        higher = reading.bytes is not None and reading.bytes >= (self._peak.bytes or 0)
        if higher or self._peak.bytes is None:
            self._peak = reading
        return reading

    async def close(self) -> Reading:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        return self._peak


class DeviceUse(Struct, frozen=True):
    """One device now: used in all, and by processes that aren't this worker's."""

    used: Reading
    external: Reading
    own_bytes: int | None = None


def device_use(profile: RuntimeProfile, own: set[int]) -> DeviceUse:
    if profile.device != "cuda":
        return DeviceUse(Reading(unavailable=NO_DEVICE), Reading(unavailable=NO_DEVICE))
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - no driver, no library, wrong version: all mean no measurement
        why = Reading(unavailable=f"NVML: {error}")
        return DeviceUse(why, why)
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(profile.device_index)
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        by_pid = {
            int(process.pid): process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        }
    except pynvml.NVMLError as error:
        why = Reading(unavailable=f"NVML: {error}")
        return DeviceUse(why, why)
    finally:
        pynvml.nvmlShutdown()
    return _attribute(used, by_pid, own)


def _attribute(used: int, by_pid: dict[int, int | None], own: set[int]) -> DeviceUse:
    total = Reading(bytes=used)
    if own and not own & by_pid.keys():
        return DeviceUse(total, Reading(unavailable="NVML does not list this worker's processes by their pids here"))
    own_bytes = attribute(by_pid, own)
    if own_bytes is None:
        return DeviceUse(total, Reading(unavailable="NVML tells no memory per process here"))
    return DeviceUse(total, Reading(bytes=max(used - own_bytes, 0)), own_bytes)


def attribute(by_pid: dict[int, int | None], own: set[int]) -> int | None:
    """What these processes of ours hold of a device, None where the driver does not tell."""
    if own and not own & by_pid.keys():
        return None
    mine = [by_pid[pid] for pid in own if pid in by_pid]
    return None if None in mine else sum(held for held in mine if held is not None)


class LoadReadings(Struct):
    """The readings of one load as they come in; `memory` makes evidence of them at any stage."""

    profile: RuntimeProfile
    identity: Identity
    before: Reading
    device_before: DeviceUse
    peak: Reading = Reading(unavailable="not sampled")
    loaded: Reading = Reading(unavailable="not loaded")
    allocator_loaded: Reading = Reading(unavailable=NO_ALLOCATOR)
    allocator_after: Reading = Reading(unavailable=NO_ALLOCATOR)
    device_loaded: DeviceUse | None = None

    def while_loaded(self) -> Memory:
        why = Reading(unavailable=STILL_LOADED)
        return self._memory(why, self.device_loaded or self.device_before, why, complete=False, device_after=why)

    def after_exit(self) -> Memory:
        """After the process ended: what it held and no longer does."""
        after = process_bytes(self.identity)
        device_after = device_use(self.profile, {self.identity.pid} if is_alive(self.identity) else set())
        gone = after.bytes == 0
        reclaimed = self.loaded
        if self.loaded.bytes is not None and after.bytes is not None:
            reclaimed = Reading(bytes=max(self.loaded.bytes - after.bytes, 0))
        return self._memory(
            after,
            self.device_loaded or self.device_before,
            reclaimed,
            complete=gone and self._device_given_back(device_after),
            device_after=device_after.used,
        )

    def _device_given_back(self, after: DeviceUse) -> bool:
        """True on cpu. On a device: the total fell by what the allocator had held, within the slack.

        Where NVML is not there to tell, the process's end is the word: the driver frees with it.
        """
        loaded = self.device_loaded
        if self.profile.device != "cuda" or loaded is None or loaded.used.bytes is None or after.used.bytes is None:
            return True
        held = self.allocator_loaded.bytes or 0
        return after.used.bytes <= loaded.used.bytes - held + DEVICE_SLACK_BYTES

    def _memory(
        self, after: Reading, loaded: DeviceUse, reclaimed: Reading, *, complete: bool, device_after: Reading
    ) -> Memory:
        return Memory(
            process_before=self.before,
            process_peak=self.peak,
            process_loaded=self.loaded,
            process_after=after,
            allocator_loaded=self.allocator_loaded,
            allocator_after=self.allocator_after,
            device_used_before=self.device_before.used,
            device_used_loaded=loaded.used,
            device_used_after=device_after,
            device_external=loaded.external,
            reclaimed=reclaimed,
            reclaim_complete=complete,
        )


def oom_kills() -> int | None:
    """Processes that the kernel has killed for memory so far: of this cgroup where it tells, else of the machine."""
    for path, key in ((_own_memory_events(), "oom_kill"), (Path("/proc/vmstat"), "oom_kill")):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    return None


def _own_memory_events() -> Path:
    group = "/"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                group = line[3:]
    return Path("/sys/fs/cgroup" + group) / "memory.events"
