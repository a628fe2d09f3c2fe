"""Device memory by NVML, driven with answers of the library's own form: its structs, its errors, its None.

No machine with a device took part: these are the shapes that `pynvml` documents, in sizes that were made up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from schemas.devices import DeviceReading
from schemas.environments import Device, RuntimeEnvironment
from worker.model import accelerator as a
from worker.model.accelerator import NoAccelerator, Nvml, accelerator_of, attribute, child_pids

GIB = 1024**3
Processes = Sequence[tuple[int, int | None]]


class RecordedNvml:
    """What the six functions that are asked answered: by device (total, used, processes), or the error they raised."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *devices: tuple[int, int, Processes] | int, refuses: int | None = None) -> None:
        self._devices = devices
        self._refuses = refuses
        self.opened = 0
        self.processes_refused: int | None = None

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        if self._refuses is not None:
            raise pynvml.NVMLError(self._refuses)
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index >= len(self._devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def _known(self, handle: int) -> tuple[int, int, Processes]:
        known = self._devices[handle]
        if isinstance(known, int):
            raise pynvml.NVMLError(known)
        return known

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        total, used, _ = self._known(handle)
        return SimpleNamespace(total=total, free=total - used, used=used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        if self.processes_refused is not None:
            raise pynvml.NVMLError(self.processes_refused)
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self._known(handle)[2]]


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The pids that count as this worker's."""
    own: set[int] = set()
    monkeypatch.setattr(a, "child_pids", lambda: own)
    return own


def test_own_and_external_use_are_told_apart(ours: set[int]) -> None:
    ours.update({10, 11})
    library = RecordedNvml((80 * GIB, 50 * GIB, [(10, 20 * GIB), (11, 5 * GIB), (99, 24 * GIB)]))
    assert Nvml([0], library).read() == [DeviceReading(0, 80 * GIB, 50 * GIB, 25 * GIB, 25 * GIB)]
    assert library.opened == 0


def test_without_children_all_use_is_of_others(ours: set[int]) -> None:
    (reading,) = Nvml([0], RecordedNvml((80 * GIB, 3 * GIB, [(99, 2 * GIB)]))).read()
    assert (reading.own_bytes, reading.external_bytes) == (0, 3 * GIB)


@pytest.mark.parametrize("processes", [[(99, 2 * GIB)], [], [(10, None)]])
def test_whose_it_is_stays_unknown_where_the_driver_does_not_tell(ours: set[int], processes: Processes) -> None:
    """Other pids than ours, as in a container; or no figure per process, as the library says with None."""
    ours.add(10)
    (reading,) = Nvml([0], RecordedNvml((80 * GIB, 3 * GIB, processes))).read()
    assert reading == DeviceReading(0, 80 * GIB, 3 * GIB)


def test_a_list_of_processes_that_may_not_be_read_leaves_total_and_used(ours: set[int]) -> None:
    library = RecordedNvml((80 * GIB, 3 * GIB, []))
    library.processes_refused = pynvml.NVML_ERROR_NO_PERMISSION
    assert Nvml([0], library).read() == [DeviceReading(0, 80 * GIB, 3 * GIB)]
    assert library.opened == 0


def test_a_device_that_cannot_be_asked_is_listed_with_the_reason(ours: set[int]) -> None:
    library = RecordedNvml(pynvml.NVML_ERROR_GPU_IS_LOST, (8 * GIB, 0, []))
    lost, sound, gone = Nvml([0, 1, 2], library).read()
    assert lost.total_bytes is lost.used_bytes is None
    assert (lost.unavailable or "").startswith("NVML: ")
    assert sound == DeviceReading(1, 8 * GIB, 0, 0, 0)
    assert gone.unavailable
    assert library.opened == 0


def test_a_driver_that_is_away_makes_every_device_unavailable_and_none_empty(ours: set[int]) -> None:
    first, second = Nvml([0, 1], RecordedNvml(refuses=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)).read()
    for reading in (first, second):
        assert reading.total_bytes is None
        assert "NVML: " in (reading.unavailable or "")


def test_attribution() -> None:
    assert attribute({10: 300, 20: 500}, {10}) == 300
    assert attribute({20: 500}, set()) == 0
    assert attribute({20: 500}, {10}) is None
    assert attribute({10: 1, 11: None}, {10, 11}) is None


def test_own_processes_are_those_this_one_started() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        assert process.pid in child_pids()
        assert os.getpid() not in child_pids()
    finally:
        process.kill()
        process.wait()
    assert process.pid not in child_pids()


def environment(*devices: Device) -> RuntimeEnvironment:
    return RuntimeEnvironment("3.11.9", "linux", "0.1.0", {}, {}, list(devices))


def test_a_node_without_devices_measures_nothing() -> None:
    accelerator = accelerator_of(environment(Device("cpu", 0, "x86_64")))
    assert isinstance(accelerator, NoAccelerator)
    assert accelerator.read() == []


def test_the_devices_of_the_environment_are_the_ones_that_are_asked() -> None:
    accelerator = accelerator_of(
        environment(Device("cpu", 0, "x86_64"), Device("cuda", 0, "g"), Device("cuda", 2, "g"))
    )
    assert isinstance(accelerator, Nvml)
    assert [reading.index for reading in accelerator.read()] == [0, 2]  # here they have no driver, and say so
