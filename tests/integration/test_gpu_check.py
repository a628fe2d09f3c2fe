"""The check on hardware, run on the processor: everything in it but the device, with real models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from services.showcase import cross_encoder, whisper
from tests.gpu import check as check_module
from tests.gpu.check import Check, Report, report
from worker.environment import runtime_environment
from worker.memory.accelerator import NoAccelerator
from worker.memory.device_watch import DeviceWatch

OF_THE_DEVICE = (
    "the device's use grew", "the driver says", "what the driver counts", "the allocator's peak", "dropping the model",
    "the ended process is no longer", "a stranger's memory is", "it is gone with its process",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "STRANGER_BYTES", 1_024)


async def test_all_of_it_but_the_device(tmp_path: Path) -> None:
    stages: list[str] = []
    watch = DeviceWatch(NoAccelerator())
    check = Check("cpu", 0, watch, stages.append, tmp_path)
    text, speech = cross_encoder.MODELS[0], whisper.MODELS[0]
    await check.run([text, speech])
    assert stages == [
        "idle", f"{text.name} loaded", "beside a stranger", "after the stranger", f"{text.name} unloaded",
        f"{speech.name} loaded", f"{speech.name} unloaded",
    ]  # fmt: skip
    found = report(check, "a test", runtime_environment(), "no device", contained=watch.contained, recording={})
    assert [each for each in found.findings if each.outcome == "not held"] == []
    assert found.held
    for each in found.findings:
        of_the_device = any(part in each.name for part in OF_THE_DEVICE)
        assert (each.outcome == "not measured") is of_the_device, each
    for cycle, model in zip(found.cycles, (text, speech), strict=True):
        assert (cycle.model, cycle.answers, cycle.exit_code) == (model.name, len(model.requests), 0)
        assert cycle.memory.reclaim_complete
        assert cycle.memory.device_used_loaded.bytes is None
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found


async def test_what_is_not_sound_is_not_held(tmp_path: Path) -> None:
    """A folder that cannot be loaded is found, and the check goes on to its end."""

    def empty(folder: Path) -> None:
        (folder / "config.json").write_text("{}")

    check = Check("cpu", 0, DeviceWatch(NoAccelerator()), lambda stage: None, tmp_path)
    await check.run([dataclasses.replace(cross_encoder.MODELS[0], build=empty)])
    (only,) = check.findings
    assert (only.outcome, bool(only.detail)) == ("not measured", True)
