"""An unload whose process does not end: it is never called gone while it is there.

A process that no signal ends is played by one that stands still and a kill that is not sent.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.codes import Code, Refusal
from schemas.profiles import Limits
from tests.unit.domain.story import environment
from tests.unit.worker.launch.test_launching import SPY, WAIT_S, launching
from worker.launch.launching import Launcher
from worker.memory.accelerator import NoAccelerator
from worker.memory.device_watch import DeviceWatch
from worker.memory.load_memory import LoadMemory
from worker.model import child, frames
from worker.model.child import ModelProcess
from worker.model.loading import LoadedModel
from worker.serving.resident import Resident
from worker.serving.residents import Residents

NAME = "d" * 32
HASTY = replace(SPY, limits=Limits(unload_ms=200))


async def unheard(resident: Resident, code: Code, message: str, exit_code: int | None) -> None:
    raise AssertionError(f"nobody lost {resident.deployment_id}: {message}")


async def resident_in(residents: Residents, launcher: Launcher) -> LoadedModel:
    process = await ModelProcess.spawn(launcher, HASTY)
    memory = LoadMemory(HASTY, process.identity, DeviceWatch(NoAccelerator()))
    unmeasured: Any = None
    model = LoadedModel(process, HASTY, unmeasured, frames.Facts(4, 128, 1), memory, unmeasured, 0.0, 0.0, 0.0)

    async def load() -> LoadedModel:
        return model

    await residents.load(Resident(NAME, "a" * 64, "b" * 64, HASTY, "w1", 1), load)
    return model


async def test_a_process_that_nobody_can_end_is_told_measured_and_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "KILL_WAIT_SECONDS_MAX", 0.2)
    monkeypatch.setattr(child, "kill_group", lambda identity: None)
    residents = Residents("1", environment(), unheard)
    async with launching(tmp_path, fresh=True) as launcher:
        model = await resident_in(residents, launcher)
        pid = model.process.identity.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(Refusal) as refused:
            await residents.unload(NAME)
        assert refused.value.code is Code.RECLAIM_INCOMPLETE
        assert str(pid) in refused.value.message
        (held,) = residents.live()
        assert (held.entry.state, held.child_pid) == ("unloading", pid)
        assert held.process_bytes is not None
        assert held.process_bytes > 0
        assert f"holds {refused.value.detail['process_bytes']} bytes" in refused.value.message
        with pytest.raises(Refusal) as again:  # and nothing is loaded in its place, nor unloaded twice
            await residents.unload(NAME)
        assert again.value.code is Code.RESIDENCY_CONFLICT
        resident = residents.get(NAME)
        assert resident is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(resident.gone.wait(), WAIT_S)
        assert residents.live() == []
