"""Measures the memory of own processes, by PSS, and counts the kernel's kills for memory.

What can't be measured is a Reading with the reason, never 0. A process that has ended (pid and start
time) holds 0 bytes; that is a measurement.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from schemas.evidence import Reading
from worker.launch.processes import Identity, is_alive

SAMPLE_SECONDS = 0.1


def process_bytes(identity: Identity) -> Reading:
    """PSS of the process now; 0 when it has ended."""
    return _rolled_up(identity, ("Pss",))


def private_bytes(identity: Identity) -> Reading:
    """What only this process holds, and its end gives back; 0 when it has ended.

    A copy of a fork server shares pages with it, which stay when the copy ends: its PSS counts a share of them.
    """
    return _rolled_up(identity, ("Private_Clean", "Private_Dirty", "Private_Hugetlb"))


def _rolled_up(identity: Identity, names: tuple[str, ...]) -> Reading:
    """The sum of these lines of smaps_rollup. The kernel walks all pages of the process for it."""
    if not is_alive(identity):
        return Reading(bytes=0)
    try:
        rollup = Path(f"/proc/{identity.pid}/smaps_rollup").read_text(encoding="ascii")
    except ProcessLookupError:
        return Reading(bytes=0)
    except OSError as error:
        return Reading(unavailable=f"smaps_rollup: {error.strerror}")
    found = [int(line.split()[1]) for line in rollup.splitlines() if line.partition(":")[0] in names]
    return Reading(bytes=sum(found) * 1024) if found else Reading(unavailable=f"smaps_rollup has no {names[0]} line")


class PeakSampler:
    """Samples one process's PSS every SAMPLE_SECONDS until closed. The peak is the highest seen sample.

    In a thread: the kernel walks all pages of the process for each, which takes it some 10 ms, and whoever is served
    meanwhile should not wait for that. The first comes after SAMPLE_SECONDS, when there is something to see.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._peak: Reading = Reading(unavailable="no sample was taken")
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while is_alive(self._identity):
            await asyncio.sleep(SAMPLE_SECONDS)
            self._note(await asyncio.to_thread(process_bytes, self._identity))

    def sample(self) -> Reading:
        return self._note(process_bytes(self._identity))

    def _note(self, reading: Reading) -> Reading:
        higher = reading.bytes is not None and reading.bytes >= (self._peak.bytes or 0)
        if higher or self._peak.bytes is None:
            self._peak = reading
        return reading

    async def close(self) -> Reading:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        return self._peak


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
