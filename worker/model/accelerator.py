"""The memory of this node's devices, as their driver tells it: total, used, and whose it is.

`Accelerator` is the port. `Nvml` asks NVIDIA's library from the parent process, which never imports an ML runtime;
`NoAccelerator` is a node without devices. Each reading is made afresh; nothing is remembered between two. A device
that cannot be asked is still listed, with the reason, so that nobody takes it for empty.

In a container NVML's pids can be others than ours. Then no process of ours is found on the device although we have
some, and whose memory it is stays unknown: that is said by `own_bytes` and `external_bytes` being None.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from schemas.devices import DeviceReading
from schemas.environments import RuntimeEnvironment

REASON_CHARACTERS_MAX = 400


class Accelerator(Protocol):
    """Where device memory is measured. Blocking: called in a thread."""

    def read(self) -> list[DeviceReading]: ...


class NoAccelerator:
    """A node without devices: there is nothing to measure."""

    def read(self) -> list[DeviceReading]:
        return []


class Nvml:
    """The devices with these indices, by NVML. `library` is the module `pynvml`, or what answers like it."""

    def __init__(self, indices: Sequence[int], library: Any) -> None:
        self._indices = indices
        self._nvml = library

    def read(self) -> list[DeviceReading]:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            return [_unavailable(index, error) for index in self._indices]
        try:
            own = child_pids()
            return [self._device(index, own) for index in self._indices]
        finally:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _device(self, index: int, own: set[int]) -> DeviceReading:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            return _unavailable(index, error)
        total, used = int(memory.total), int(memory.used)
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return DeviceReading(index, total, used)
        own_bytes = attribute({int(each.pid): each.usedGpuMemory for each in processes}, own)
        external = None if own_bytes is None else max(used - own_bytes, 0)
        return DeviceReading(index, total, used, own_bytes, external)


def attribute(by_pid: dict[int, int | None], own: set[int]) -> int | None:
    """What these processes of ours hold of a device, None where the driver does not tell."""
    if own and not own & by_pid.keys():
        return None
    mine = [by_pid[pid] for pid in own if pid in by_pid]
    return None if None in mine else sum(held for held in mine if held is not None)


def child_pids() -> set[int]:
    """The processes that this one has started and that have not been reaped: its model processes."""
    found: set[int] = set()
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(int(pid) for pid in path.read_text().split())
    return found


def accelerator_of(environment: RuntimeEnvironment) -> Accelerator:
    """The accelerator of a node with this environment."""
    indices = [device.index for device in environment.devices if device.kind == "cuda"]
    if not indices:
        return NoAccelerator()
    import pynvml  # only where its devices were found with it

    return Nvml(indices, pynvml)


def _unavailable(index: int, error: Exception) -> DeviceReading:
    return DeviceReading(index, unavailable=f"NVML: {error}"[:REASON_CHARACTERS_MAX])
