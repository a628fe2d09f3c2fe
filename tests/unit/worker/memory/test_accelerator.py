"""Device memory by NVML: the real `pynvml` over recorded answers, and whose the memory is.

No machine with a device took part; see recorded_driver.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pynvml
import pytest

from schemas.devices import DeviceReading
from schemas.environments import Device, RuntimeEnvironment
from schemas.evidence import Reading
from tests.unit.worker.memory.recorded_driver import RECORDINGS, RecordedDriver, install, read
from worker.environment import runtime_environment
from worker.memory import attribution
from worker.memory.accelerator import MIG_IS_ON, RENUMBERED, DeviceLook, NoAccelerator, Nvml, accelerator_of
from worker.memory.attribution import (
    FOREIGN_PIDS,
    INITIAL_PID_NAMESPACE,
    NO_FIGURE,
    NOT_LISTED,
    child_pids,
    held_by,
    held_by_others,
    is_contained,
    reading_of,
)

GIB = 1024**3
OURS = {10_001, 10_002}  # the pids that the recordings have for our processes
H100 = 85_520_809_984


def looks(name: str, monkeypatch: pytest.MonkeyPatch, *indices: int) -> list[DeviceLook]:
    driver = install(name, monkeypatch)
    found = Nvml(indices or (0,), pynvml).look()
    assert driver.opened == 0  # what was opened was closed, whatever the answers
    return found


def look(name: str, monkeypatch: pytest.MonkeyPatch) -> DeviceLook:
    (found,) = looks(name, monkeypatch)
    return found


@pytest.mark.parametrize("name", RECORDINGS)
def test_no_answer_of_a_driver_raises_and_every_recording_says_that_it_is_constructed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(name)["origin"].startswith("CONSTRUCTED ")
    for found in looks(name, monkeypatch, 0, 1, 7):
        for part in (found.total, found.used):
            assert (part.bytes is None) is bool(part.unavailable)
        reading = reading_of(found, OURS, contained=False)
        assert (reading.used_bytes is None) is bool(reading.unavailable)
        assert (reading.own_bytes is None) is bool(reading.unavailable or reading.unattributed)


def test_each_process_has_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = looks("h100", monkeypatch, 0, 1)
    assert (first.index, first.total.bytes, second.index) == (0, H100, 1)
    assert first.held == {10_001: 20 * GIB, 10_002: 5 * GIB, 99: 24 * GIB}
    assert (second.held, second.unlisted) == ({}, "")


def test_own_and_external_use_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look("h100", monkeypatch)
    used = found.used.bytes or 0
    assert reading_of(found, OURS, contained=False) == DeviceReading(0, H100, used, 25 * GIB, used - 25 * GIB)


def test_a_stranger_is_external_use_and_never_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look("h100", monkeypatch)
    reading = reading_of(found, set(), contained=False)
    assert (reading.own_bytes, reading.external_bytes) == (0, found.used.bytes)


def test_one_process_in_several_lists_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look("h200_draws_and_shares", monkeypatch)
    assert found.held == {10_001: 4 * GIB, 10_002: 4 * GIB, 99: GIB}
    assert held_by(found, OURS, contained=False).bytes == 8 * GIB


@pytest.mark.parametrize(
    ("name", "why"),
    [("h100_no_figure_per_process", NO_FIGURE), ("h100_no_permission", "Insufficient Permissions"),
     ("old_driver", "pyNVML version does not match")],
)  # fmt: skip
def test_whose_it_is_stays_unknown_where_the_driver_does_not_tell(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = reading_of(look(name, monkeypatch), OURS, contained=False)
    assert reading.used_bytes is not None
    assert (reading.own_bytes, reading.external_bytes) == (None, None)
    assert why in (reading.unattributed or "")


@pytest.mark.parametrize(
    ("name", "why"),
    [("h100_mig_on", MIG_IS_ON), ("gpu_lost", "GPU is lost"), ("reset_required", "GPU requires restart"),
     ("driver_not_loaded", "Driver Not Loaded"), ("library_mismatch", "version mismatch"),
     ("shared_memory_board", "Not Supported")],
)  # fmt: skip
def test_a_device_that_cannot_be_measured_is_listed_with_the_reason_and_not_as_empty(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = reading_of(look(name, monkeypatch), set(), contained=False)
    assert (reading.total_bytes, reading.used_bytes, reading.own_bytes, reading.external_bytes) == (None,) * 4
    assert why in (reading.unavailable or "")


def test_a_lost_device_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, sound, absent = looks("gpu_lost", monkeypatch, 0, 1, 2)
    assert lost.used.bytes is None
    assert sound.used.bytes
    assert "Invalid Argument" in (absent.used.unavailable or "")


# --- pids that may be others than ours ----------------------------------------------------------------------


@pytest.mark.parametrize("contained", [True, False])
def test_a_list_without_a_process_whose_model_is_there_says_nothing(
    contained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = look("h100_in_a_container", monkeypatch)
    reading = reading_of(found, OURS, {10_001}, contained=contained)
    assert (reading.own_bytes, reading.external_bytes, reading.unattributed) == (None, None, NOT_LISTED)
    assert reading.used_bytes == found.used.bytes
    assert held_by(found, OURS, contained=contained).bytes == 0  # none of them has a model there


def test_a_pid_like_ours_proves_nothing_while_the_list_has_pids_that_are_no_processes_here() -> None:
    mixed = DeviceLook(0, Reading(10), Reading(9), {os.getpid(): 4, 2**22 + 1: 5})
    assert held_by(mixed, {os.getpid()}, contained=True).unavailable == FOREIGN_PIDS
    assert held_by(mixed, {os.getpid()}, contained=False).bytes == 4


def test_in_a_container_whose_pids_the_driver_translates_attribution_works() -> None:
    translated = DeviceLook(0, Reading(10), Reading(9), {os.getpid(): 4, 1: 5})
    own = held_by(translated, {os.getpid()}, contained=True)
    assert (own.bytes, held_by_others(translated, own).bytes) == (4, 5)


def test_without_processes_of_ours_nothing_is_ours_wherever_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert held_by(look("h100_in_a_container", monkeypatch), set(), contained=True).bytes == 0


def test_a_pid_namespace_of_our_own_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.stat("/proc/self/ns/pid").st_ino
    assert is_contained() is (here != INITIAL_PID_NAMESPACE)
    monkeypatch.setattr(attribution, "INITIAL_PID_NAMESPACE", here)
    assert not is_contained()
    monkeypatch.setattr(attribution, "INITIAL_PID_NAMESPACE", here + 1)
    assert is_contained()


# --- which processes and which devices are ours ------------------------------------------------------------


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
    assert (accelerator.look(), list(accelerator.indices)) == ([], [])


@pytest.mark.parametrize(
    ("name", "devices"),
    [("gpu_lost", [("NVIDIA H100 80GB HBM3", None), ("NVIDIA H100 80GB HBM3", H100)]),
     ("reset_required", [("unknown", None)]), ("shared_memory_board", [("NVIDIA GB10", None)]),
     ("driver_not_loaded", [])],
)  # fmt: skip
def test_a_device_that_cannot_be_measured_is_registered_all_the_same(
    name: str, devices: list[tuple[str, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(name, monkeypatch)
    found = [device for device in runtime_environment().devices if device.kind == "cuda"]
    assert [(device.name, device.memory_bytes) for device in found] == devices
    assert driver.opened == 0


@pytest.mark.parametrize(
    ("visible", "renumbered"),
    [(None, False), ("", False), ("0", False), ("0,1", False), (" 0, 1 ", False), ("1", True), ("1,0", True),
     ("GPU-8f6f3b5e", True), ("MIG-1", True), ("-1", True)],
)  # fmt: skip
def test_devices_that_are_renumbered_for_the_runtime_are_not_measured_as_others(
    visible: str | None, renumbered: bool, h100: RecordedDriver
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    (found,) = accelerator_of(environment(Device("cuda", 0, "g")), environ).look()
    assert (found.used.unavailable == RENUMBERED) is renumbered
    assert (found.used.bytes is None) is renumbered
    assert h100.opened == 0


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> RecordedDriver:
    return install("h100", monkeypatch)


def test_the_devices_of_the_environment_are_the_ones_that_are_asked(h100: RecordedDriver) -> None:
    found = runtime_environment()
    assert (found.driver, [device.index for device in found.devices]) == (h100.driver, [0, 0, 1])
    accelerator = accelerator_of(environment(Device("cpu", 0, "x86_64"), Device("cuda", 1, "g")))
    assert isinstance(accelerator, Nvml)
    assert [each.index for each in accelerator.look()] == [1]
    assert h100.opened == 0
