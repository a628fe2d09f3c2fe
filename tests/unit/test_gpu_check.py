"""What the check on hardware concludes and when it refuses, without hardware: it never holds what was not measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
from msgspec.structs import replace

from schemas.devices import DeviceReading
from schemas.environments import Device, RuntimeEnvironment
from schemas.evidence import Memory, Reading
from tests.gpu import __main__ as command
from tests.gpu import recording, stranger
from tests.gpu.check import Check, Report, report
from tests.gpu.findings import CONTEXT_BYTES_MAX, SLACK_BYTES, Finding, Outcome, of_memory, of_stranger
from tests.unit.domain import statements as says
from tests.unit.worker.memory import recorded_driver
from worker.launch.processes import is_alive
from worker.memory.accelerator import NoAccelerator
from worker.memory.attribution import child_pids
from worker.memory.device_watch import DeviceWatch

GIB = 1024**3
NOWHERE = Reading(unavailable="the profile runs on cpu")
SOUND = Memory(
    process_before=Reading(GIB),
    process_peak=Reading(3 * GIB),
    process_loaded=Reading(2 * GIB),
    process_after=Reading(0),
    allocator_loaded=Reading(4 * GIB),
    allocator_after=Reading(0),
    device_used_before=Reading(GIB),
    device_used_loaded=Reading(7 * GIB),
    device_used_after=Reading(GIB),
    device_external=Reading(GIB),
    reclaimed=Reading(2 * GIB),
    reclaim_complete=True,
    allocator_before=Reading(0),
    allocator_peak=Reading(5 * GIB),
    allocator_reserved_loaded=Reading(5 * GIB),
    allocator_reserved_after=Reading(0),
    allocator_reclaimed=Reading(5 * GIB),
    device_total=Reading(80 * GIB),
    device_own_loaded=Reading(6 * GIB),
    device_own_after=Reading(0),
    cgroup_limit=NOWHERE,
    cgroup_current=NOWHERE,
    reclaim_waited_ms=3.0,
    reclaim_reason="",
)


def failed(found: list[Finding]) -> list[str]:
    return [each.name for each in found if each.outcome == "not held"]


def test_instruments_that_agree_hold() -> None:
    assert {each.outcome for each in of_memory(SOUND)} == {"held"}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"device_used_loaded": Reading(6 * GIB - SLACK_BYTES - 1)}, "grew by what the allocator reserved"),
        ({"device_own_loaded": Reading(5 * GIB - 1)}, "at least what the allocator reserved"),
        ({"device_own_loaded": Reading(5 * GIB + CONTEXT_BYTES_MAX + 1)}, "a context's size"),
        ({"allocator_peak": Reading(4 * GIB - 1)}, "the allocator's peak"),
        ({"allocator_after": Reading(4 * GIB)}, "frees its tensors"),
        ({"device_own_after": Reading(1)}, "no longer on the driver's list"),
        ({"process_after": Reading(1)}, "the process has gone"),
        ({"reclaim_complete": False, "reclaim_reason": "still in use"}, "has its memory back"),
    ],
)  # fmt: skip
def test_each_finding_can_fail(wrong: dict[str, Any], name: str) -> None:
    (found,) = failed(of_memory(replace(SOUND, **wrong)))
    assert name in found


def test_what_was_not_measured_is_not_held() -> None:
    unmeasured = of_memory(says.memory())  # as an earlier worker told it, on a processor
    assert {each.name for each in unmeasured if each.outcome == "held"} == {
        "the process has gone", "the device has its memory back",
    }  # fmt: skip
    why = Reading(unavailable="Insufficient Permissions")
    found = of_memory(replace(SOUND, device_own_loaded=why, device_own_after=why))
    assert [each.detail for each in found if each.outcome == "not measured"] == ["Insufficient Permissions"] * 3
    assert failed(found) == []


def test_a_strangers_memory_is_held_against_what_it_took() -> None:
    def reading(external: int | None, own: int | None = GIB) -> DeviceReading:
        return DeviceReading(0, 80 * GIB, 9 * GIB, own, external, unattributed=None if own is not None else "why")

    took = GIB // 2
    assert failed(of_stranger(reading(GIB), reading(GIB + took), reading(GIB), took)) == []
    assert len(failed(of_stranger(reading(GIB), reading(GIB), reading(GIB), took))) == 1
    assert len(failed(of_stranger(reading(GIB), reading(GIB + took, GIB + took), reading(GIB), took))) == 1
    assert len(failed(of_stranger(reading(GIB), reading(GIB + took), reading(GIB + took), took))) == 1
    unknown = of_stranger(reading(GIB), reading(None, None), reading(GIB), took)
    assert {(each.outcome, each.detail) for each in unknown} == {("not measured", "why")}


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "evidence.json"
    assert command.main(["--out", str(out)]) == 3
    told = capsys.readouterr()
    assert told.err == (
        "There is no NVIDIA GPU here: NVML lists none. Nothing was checked, and no evidence was written.\n"
    )
    assert (told.out, out.exists()) == ("", False)


def test_a_gpu_that_torch_cannot_use_is_none_to_check_with() -> None:
    gpu = RuntimeEnvironment("3.11", "linux", "0", {}, {}, [Device("cuda", 0, "H100")])
    assert "There is no NVIDIA GPU 1 here; there are: 0." in (command.why_not(gpu, 1) or "")
    if not os.path.exists("/proc/driver/nvidia/version"):
        assert "this torch cannot use it" in (command.why_not(gpu, 0) or "")


@pytest.mark.parametrize(
    "name", ["h100", "h200_draws_and_shares", "h100_no_figure_per_process", "h100_no_permission", "h100_mig_on"]
)
def test_a_recording_says_what_the_driver_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check writes down of a driver is what the recorded driver under it was made of."""
    driver = recorded_driver.install(name, monkeypatch)
    known = recorded_driver.read(name)["steps"][0][0]
    found = recording.device(pynvml, 0)
    for kind in ("compute", "graphics", "mps"):
        if isinstance(found[kind], list):
            found[kind] = [{key: each[key] for key in ("pid", "usedGpuMemory")} for each in found[kind]]
    assert found == known
    assert (recording.driver(pynvml), driver.opened) == (driver.driver, 0)


async def test_a_stranger_is_nobodys_child_and_leaves_when_it_is_let_go(tmp_path: Path) -> None:
    came = await stranger.come("cpu", 1_024, tmp_path)
    try:
        assert is_alive(came.identity)
        assert came.identity.pid not in child_pids()
        await stranger.hold(came)
        assert is_alive(came.identity)
    finally:
        assert await stranger.end(came)
    assert not is_alive(came.identity)


async def test_a_stranger_that_cannot_hold_its_memory_is_said_to(tmp_path: Path) -> None:
    came = await stranger.come("cpu", -1, tmp_path)
    with pytest.raises(RuntimeError, match=r"the stranger has ended(.|\n)*negative"):
        await stranger.hold(came)
    assert await stranger.end(came)


def test_a_gpu_without_a_torch_that_can_use_it_writes_nothing_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_driver.install("h100", monkeypatch)
    out = tmp_path / "evidence.json"
    assert command.main(["--out", str(out)]) == 3
    assert "this torch cannot use it" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("outcome", "code"), [("held", 0), ("not held", 1), ("not measured", 0)])
def test_the_evidence_is_written_and_the_exit_code_is_its_verdict(
    outcome: Outcome, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_driver.install("h100", monkeypatch)

    async def run(environment: RuntimeEnvironment, device: Device, folder: Path) -> Report:
        check = Check("cuda", device.index, DeviceWatch(NoAccelerator()), lambda stage: None, folder)
        check.findings = [Finding("a thing", outcome, "because")]
        return report(check, "a test", environment, device.name, contained=False, recording={})

    monkeypatch.setattr(command, "why_not", lambda environment, index: None)
    monkeypatch.setattr(command, "run", run)
    out = tmp_path / "evidence.json"
    assert command.main(["--out", str(out), "--device", "1"]) == code
    written = msgspec.json.decode(out.read_bytes(), type=Report)
    assert (written.held, written.device, written.findings[0].outcome) == (code == 0, "NVIDIA H100 80GB HBM3", outcome)
    assert f"{outcome:<13} a thing (because)" in capsys.readouterr().out


def test_nothing_checked_is_nothing_held(tmp_path: Path) -> None:
    check = Check("cpu", 0, DeviceWatch(NoAccelerator()), lambda stage: None, tmp_path)
    environment = RuntimeEnvironment("3.11", "linux", "0", {}, {}, [])
    assert not report(check, "a test", environment, "none", contained=False, recording={}).held
