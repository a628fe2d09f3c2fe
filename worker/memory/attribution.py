"""Whose device memory is: this worker's processes', or others'.

A process is ours only if this worker started it: nothing that is found on a device is adopted. What is not ours is
external use, whatever it is. Where the driver's pids may be others than the ones here, a pid proves nothing, and both
sides are unavailable with the reason, never 0:

| what the driver lists                                         | our processes hold      |
|---------------------------------------------------------------|-------------------------|
| no list (no permission, not supported, device lost)           | unavailable             |
| one of ours without a figure                                  | unavailable             |
| not one of ours whose model is on the device (`expected`)     | unavailable             |
| in a pid namespace of our own: one of ours beside a pid that  | unavailable             |
| is no process here                                            |                         |
| otherwise                                                     | the sum over ours       |

We are in the machine's first pid namespace or in one of our own, as in a container; only in the first one are the
driver's pids certainly those that we see.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

import psutil

from schemas.devices import DeviceReading
from schemas.evidence import Reading
from worker.memory.accelerator import DeviceLook

INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel: the inode of the machine's first one
FOREIGN_PIDS = "NVML lists processes by pids that are not ours to read: this worker is in a pid namespace of its own"
NOT_LISTED = "NVML does not list a process whose model is on the device: its pids may be others, as in a container"
NO_FIGURE = "NVML tells no memory per process here"


def held_by(look: DeviceLook, own: Collection[int], expected: Collection[int] = (), *, contained: bool) -> Reading:
    """What these processes hold of the device. `expected` are those of them that certainly hold something.

    `contained`: we are in a pid namespace of our own.
    """
    if look.unlisted:
        return Reading(unavailable=look.unlisted)
    if any(pid not in look.held for pid in expected):
        return Reading(unavailable=NOT_LISTED)
    listed = [look.held[pid] for pid in own if pid in look.held]
    if None in listed:
        return Reading(unavailable=NO_FIGURE)
    if contained and listed and not all(map(_is_here, look.held)):
        return Reading(unavailable=FOREIGN_PIDS)
    return Reading(bytes=sum(bytes_ for bytes_ in listed if bytes_ is not None))


def held_by_others(look: DeviceLook, own: Reading) -> Reading:
    """What is in use and not held by ours: other processes, and what the driver keeps for itself."""
    if look.used.bytes is None:
        return look.used
    if own.bytes is None:
        return own
    return Reading(bytes=max(look.used.bytes - own.bytes, 0))


def reading_of(
    look: DeviceLook, own: Collection[int], expected: Collection[int] = (), *, contained: bool
) -> DeviceReading:
    """The look as it is told to the control plane."""
    if look.total.bytes is None or look.used.bytes is None:
        return DeviceReading(look.index, unavailable=look.used.unavailable or look.total.unavailable)
    ours = held_by(look, own, expected, contained=contained)
    others = held_by_others(look, ours)
    return DeviceReading(
        look.index, look.total.bytes, look.used.bytes, ours.bytes, others.bytes, unattributed=ours.unavailable
    )


def is_contained() -> bool:
    """Whether this process is in a pid namespace of its own. Where the kernel does not say, it is taken to be."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE
    return True


def child_pids() -> set[int]:
    """The processes that this one has started and that have not been reaped: its model processes.

    By each process's own word on its parent; the kernel's lists of children are not there on every kernel.
    """
    return {child.pid for child in psutil.Process().children()}


def _is_here(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
