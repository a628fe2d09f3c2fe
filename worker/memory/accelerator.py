"""What a node's driver says of its devices: total, used, and what each process holds.

`Accelerator` is the port, `DeviceLook` its answer: one device at one moment, each part a reading or the reason why
there is none. `Nvml` asks NVIDIA's library from the parent process, which never imports an ML runtime;
`NoAccelerator` is a node without devices. Each look is made afresh; nothing is remembered between two. A device
that cannot be asked is still listed, with the reason, so that nobody takes it for empty. Whose the memory is, is
told from a look by `worker.memory.attribution`.

Three of NVML's answers are no measurement for us, and are said to be none:

* with MIG on, total and used are the whole card's and a model runs on a slice of it;
* a list of processes that may not be read (`NVML_ERROR_NO_PERMISSION`, `NVML_ERROR_NOT_SUPPORTED`);
* a process without a figure (`NVML_VALUE_NOT_AVAILABLE`, which the library turns into None).

A device's index is NVML's, in the order of the bus, and model processes are told to count in that order, too
(`CUDA_DEVICE_ORDER`). Where CUDA_VISIBLE_DEVICES renumbers devices for them, a figure would be of another device than
the one a model runs on: then none is given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from schemas.environments import RuntimeEnvironment
from schemas.evidence import Reading

REASON_CHARACTERS_MAX = 400
RENUMBERED = "CUDA_VISIBLE_DEVICES renumbers the devices: a profile's device_index would not be the driver's"
MIG_IS_ON = "MIG is on: the driver's figures are the whole card's, not those of the slice a model runs on"


class DeviceLook(Struct, frozen=True):
    """One device at one moment. `held` is what each process holds, by its pid as the driver knows it.

    A process without a figure is None in `held`. `unlisted` says why there is no list; then `held` is empty.
    """

    index: int
    total: Reading
    used: Reading
    held: dict[int, int | None] = {}
    unlisted: str = ""


class Accelerator(Protocol):
    """Where device memory is measured. Blocking: called in a thread."""

    @property
    def indices(self) -> Sequence[int]:
        """The devices that are asked, by the driver's numbers."""

    def look(self) -> list[DeviceLook]:
        """One look for each index, in their order. Never raises for what a driver may answer."""


class NoAccelerator:
    """A node without devices: there is nothing to measure."""

    indices: Sequence[int] = ()

    def look(self) -> list[DeviceLook]:
        return []


class Nvml:
    """The devices with these indices, by NVML. `library` is the module `pynvml`, `unusable` why no figure may be used.

    Its three lists of processes are taken as one: what computes, what draws, and the clients of an MPS server.
    """

    def __init__(self, indices: Sequence[int], library: Any, unusable: str = "") -> None:
        self.indices = tuple(indices)
        self._unusable = unusable
        self._nvml = library
        # The second is no kind of the first: a function that an older driver lacks.
        self._errors = (library.NVMLError, library.NVMLLibraryMismatchError)

    def look(self) -> list[DeviceLook]:
        if self._unusable:
            return [unmeasured(index, self._unusable) for index in self.indices]
        try:
            self._nvml.nvmlInit()
        except self._errors as error:
            return [unmeasured(index, _said(error)) for index in self.indices]
        try:
            return [self._device(index) for index in self.indices]
        finally:
            with contextlib.suppress(*self._errors):
                self._nvml.nvmlShutdown()

    def _device(self, index: int) -> DeviceLook:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            if self._mig(handle):
                return unmeasured(index, MIG_IS_ON)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            total, used = Reading(bytes=int(memory.total)), Reading(bytes=int(memory.used))
        except self._errors as error:
            return unmeasured(index, _said(error))
        try:
            return DeviceLook(index, total, used, self._processes(handle))
        except self._errors as error:
            return DeviceLook(index, total, used, unlisted=f"{_said(error)} (list of processes)")

    def _mig(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return False  # a card that cannot be divided, or a driver from before there were such
        return bool(current)

    def _processes(self, handle: Any) -> dict[int, int | None]:
        """What each process holds. One that computes and draws is in two lists, with one figure."""
        held = _by_pid(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        for more in (
            self._nvml.nvmlDeviceGetGraphicsRunningProcesses,
            self._nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            with contextlib.suppress(*self._errors):  # a card or a driver without these kinds
                held = {**_by_pid(more(handle)), **held}
        return held


def _by_pid(processes: Sequence[Any]) -> dict[int, int | None]:
    return {int(each.pid): None if each.usedGpuMemory is None else int(each.usedGpuMemory) for each in processes}


def unmeasured(index: int, why: str) -> DeviceLook:
    """A device of which nothing is known, with the reason."""
    reading = Reading(unavailable=why[:REASON_CHARACTERS_MAX])
    return DeviceLook(index, reading, reading, unlisted=why[:REASON_CHARACTERS_MAX])


def _said(error: Exception) -> str:
    return f"NVML: {error}"[: REASON_CHARACTERS_MAX - 40]


def accelerator_of(environment: RuntimeEnvironment, environ: Mapping[str, str] = os.environ) -> Accelerator:
    """The accelerator of a node with this environment."""
    indices = [device.index for device in environment.devices if device.kind == "cuda"]
    if not indices:
        return NoAccelerator()
    import pynvml  # only where its devices were found with it

    return Nvml(indices, pynvml, RENUMBERED if renumbers(environ.get("CUDA_VISIBLE_DEVICES")) else "")


def renumbers(visible: str | None) -> bool:
    """Whether this value of CUDA_VISIBLE_DEVICES gives a device another number than the driver's: not `0,1,2`."""
    names = [name.strip() for name in visible.split(",")] if visible else []
    return names != [str(index) for index in range(len(names))]
