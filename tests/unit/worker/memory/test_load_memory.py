"""The memory of one load as evidence: real processes, the real `pynvml` on recorded answers.

No machine with a device took part; see recorded_driver.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pynvml
import pytest

from schemas.evidence import Memory, Reading
from schemas.profiles import RuntimeProfile
from tests.unit.worker.memory.recorded_driver import RecordedDriver, install
from worker.launch.processes import Identity, identify
from worker.memory import load_memory
from worker.memory.accelerator import NoAccelerator, Nvml
from worker.memory.allocator import NOT_ON_CPU, AllocatorReading
from worker.memory.attribution import NOT_LISTED
from worker.memory.device_watch import DeviceWatch
from worker.memory.load_memory import STILL_LOADED, STILL_THERE, LoadMemory
from worker.memory.measure import process_bytes
from worker.memory.reclaim import SLACK_BYTES

GIB = 1024**3
OURS = 10_001  # the recordings' pid for the model's process
CPU = RuntimeProfile(adapter="sentence_transformers", task="embedding")
CUDA = msgspec.structs.replace(CPU, device="cuda")
ON_CPU = AllocatorReading(unavailable=NOT_ON_CPU)
EMPTY, LOADED, DROPPED = AllocatorReading(0, 0, 0), AllocatorReading(7 * GIB, 9 * GIB, 8 * GIB), AllocatorReading(
    GIB // 4, GIB // 2, 8 * GIB
)  # fmt: skip


class Model:
    """A real process in the place of a model's, which holds on the device what a recording says."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        found = identify(self.process.pid)
        assert found is not None
        self.identity: Identity = found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    yield made
    made.end()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on a driver that never frees, short enough for a test."""
    monkeypatch.setattr(load_memory, "SETTLE_SECONDS_MAX", 0.5)
    monkeypatch.setattr(load_memory, "SETTLE_POLL_SECONDS", 0.001)


class Load:
    """One load from its first reading to its last, on a recorded driver."""

    def __init__(
        self, recording: str, model: Model, monkeypatch: pytest.MonkeyPatch, *, contained: bool = False
    ) -> None:
        self.driver: RecordedDriver = install(recording, monkeypatch, {OURS: model.identity.pid})
        self.model = model
        watch = DeviceWatch(Nvml([0], pynvml))
        watch.contained = contained
        self.memory = LoadMemory(CUDA, model.identity, watch)

    async def loaded(self) -> Memory:
        await self.memory.before(EMPTY)
        await self.memory.loaded(process_bytes(self.model.identity), LOADED)
        return self.memory.while_loaded()

    async def unloaded(self, dropped: tuple[AllocatorReading, AllocatorReading] | None = (LOADED, DROPPED)) -> Memory:
        await self.loaded()
        await self.memory.before_unload()
        if dropped is None:
            self.memory.not_dropped()
        else:
            self.memory.dropped(*dropped)
        self.model.end()
        return await self.memory.after_exit()


def parts(memory: Memory) -> dict[str, Reading]:
    return {name: value for name, value in msgspec.structs.asdict(memory).items() if isinstance(value, Reading)}


def why(memory: Memory) -> str:
    assert isinstance(memory.reclaim_reason, str)
    return memory.reclaim_reason


# --- what is given back ------------------------------------------------------------------------------------


async def test_every_instrument_before_loaded_and_after(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = await Load("reclaim_at_once", model, monkeypatch).unloaded()
    used = memory.device_used_before.bytes or 0
    assert memory.device_used_loaded.bytes == used + 9 * GIB
    assert memory.device_used_after.bytes == used
    assert (memory.device_own_loaded, memory.device_own_after) == (Reading(9 * GIB), Reading(0))
    assert memory.device_external == Reading(used)
    assert memory.device_total == Reading(85_520_809_984)
    assert (memory.allocator_before, memory.allocator_peak) == (Reading(0), Reading(8 * GIB))
    assert (memory.allocator_loaded, memory.allocator_after) == (Reading(7 * GIB), Reading(GIB // 4))
    assert (memory.allocator_reserved_loaded, memory.allocator_reserved_after) == (Reading(9 * GIB), Reading(GIB // 2))
    assert (memory.process_after, memory.reclaim_complete, memory.reclaim_reason) == (Reading(0), True, "")


async def test_what_the_allocator_and_what_the_process_gave_back_are_two_things(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping the model leaves half a GiB with the runtime; the end of the process gives back everything."""
    memory = await Load("reclaim_at_once", model, monkeypatch).unloaded()
    assert memory.allocator_reclaimed == Reading(9 * GIB - GIB // 2)
    assert memory.reclaimed == memory.process_private_loaded
    assert (memory.process_loaded.bytes or 0) > 0


async def test_a_driver_that_frees_late_is_waited_for(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load("reclaim_late", model, monkeypatch)
    memory = await load.unloaded()
    assert memory.reclaim_complete
    assert load.driver.looks == 7  # before, loaded, before the unload, and four until it was free
    assert isinstance(memory.reclaim_waited_ms, float)
    assert memory.reclaim_waited_ms > 0


async def test_memory_that_nobody_gives_back_is_incomplete_after_a_bounded_wait(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = await Load("reclaim_never", model, monkeypatch).unloaded()
    assert not memory.reclaim_complete
    assert why(memory).startswith(f"{9 * GIB} bytes more than before the unload are in use by no process")
    assert isinstance(memory.reclaim_waited_ms, float)
    assert memory.reclaim_waited_ms >= 500.0
    assert memory.process_after == Reading(0)  # the process is gone; that alone is not the device's word


async def test_a_process_that_the_driver_still_lists_is_incomplete(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load("reclaim_late", model, monkeypatch)
    load.driver.steps = load.driver.steps[:4]
    memory = await load.unloaded()
    assert not memory.reclaim_complete
    assert f"still lists the ended process with {9 * GIB} bytes" in why(memory)
    assert memory.device_own_after == Reading(9 * GIB)


async def test_a_stranger_who_takes_memory_meanwhile_does_not_spoil_the_verdict(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = await Load("reclaim_while_a_stranger_grows", model, monkeypatch).unloaded()
    assert (memory.device_used_after.bytes or 0) > (memory.device_used_loaded.bytes or 0)
    assert memory.reclaim_complete


# --- what cannot be measured is not claimed ----------------------------------------------------------------


async def test_by_the_total_alone_where_the_driver_lists_nobody(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = await Load("reclaim_by_the_total_alone", model, monkeypatch).unloaded()
    assert memory.reclaim_complete
    for reading in (memory.device_own_loaded, memory.device_own_after, memory.device_external):
        assert isinstance(reading, Reading)
        assert reading.bytes is None
        assert "Insufficient Permissions" in (reading.unavailable or "")


async def test_a_total_that_does_not_fall_is_incomplete(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = await Load("reclaim_total_stays", model, monkeypatch).unloaded()
    assert not memory.reclaim_complete
    assert f"fell by 0 bytes of {9 * GIB} held" in why(memory)


async def test_a_total_says_nothing_while_nobody_knows_what_was_held(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load("reclaim_by_the_total_alone", model, monkeypatch)
    silent = AllocatorReading(unavailable="torch.cuda: lost")
    memory = await load.unloaded((silent, silent))
    assert not memory.reclaim_complete
    assert why(memory).startswith("not measured: how much the model held is not known")
    assert memory.allocator_reclaimed == Reading(unavailable="torch.cuda: lost")


@pytest.mark.parametrize(
    ("recording", "reason"),
    [("driver_not_loaded", "Driver Not Loaded"), ("gpu_lost", "GPU is lost"), ("h100_mig_on", "MIG is on"),
     ("library_mismatch", "version mismatch"), ("shared_memory_board", "Not Supported")],
)  # fmt: skip
async def test_where_the_driver_cannot_be_asked_reclaim_was_not_measured(
    recording: str, reason: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(recording, model, monkeypatch)
    memory = await load.unloaded()
    assert not memory.reclaim_complete
    assert why(memory).startswith("not measured: ")
    assert reason in why(memory)
    assert memory.device_used_loaded.bytes is None
    assert isinstance(memory.reclaim_waited_ms, float)
    assert memory.reclaim_waited_ms < 500.0  # waiting would not measure it


async def test_in_a_container_with_other_pids_the_total_decides_and_nothing_is_attributed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load("reclaim_at_once", model, monkeypatch, contained=True)
    for step in load.driver.steps:
        for process in step[0]["compute"]:
            process["pid"] = 3_900_001  # the host's pid for it
    memory = await load.unloaded()
    assert memory.reclaim_complete
    assert isinstance(memory.device_own_loaded, Reading)
    assert memory.device_own_loaded.bytes is None
    assert memory.device_external.bytes is None


async def test_a_loaded_model_that_the_driver_does_not_list_is_not_said_to_hold_nothing(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load("reclaim_at_once", model, monkeypatch)
    for step in load.driver.steps:
        step[0]["compute"] = []
    memory = await load.unloaded()
    assert memory.device_own_loaded == Reading(unavailable=NOT_LISTED)
    assert memory.reclaim_complete  # by the total


async def test_a_device_that_the_node_does_not_have(model: Model) -> None:
    memory = LoadMemory(CUDA, model.identity, DeviceWatch(NoAccelerator()))
    await memory.before(EMPTY)
    await memory.loaded(process_bytes(model.identity), LOADED)
    model.end()
    seen = await memory.after_exit()
    assert not seen.reclaim_complete
    assert why(seen) == "not measured: this node has no CUDA device 0"


async def test_a_child_that_did_not_answer_the_unload(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = await Load("reclaim_at_once", model, monkeypatch).unloaded(None)
    assert memory.allocator_after == Reading(unavailable="the model process did not answer")
    assert isinstance(memory.allocator_reclaimed, Reading)
    assert memory.allocator_reclaimed.bytes is None
    assert memory.reclaim_complete


# --- stages ------------------------------------------------------------------------------------------------


async def test_while_loaded_nothing_is_said_of_what_comes_after(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = await Load("reclaim_at_once", model, monkeypatch).loaded()
    assert (memory.reclaim_complete, memory.reclaim_reason) == (False, STILL_LOADED)
    for reading in (memory.process_after, memory.reclaimed, memory.device_used_after, memory.device_own_after):
        assert reading == Reading(unavailable=STILL_LOADED)
    assert memory.device_own_loaded == Reading(9 * GIB)


async def test_what_it_holds_at_the_unload_counts_not_what_it_held_once(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load("reclaim_at_once", model, monkeypatch)
    load.driver.steps[2][0]["compute"][0]["usedGpuMemory"] += GIB
    load.driver.steps[2][0]["memory"]["used"] += GIB
    memory = await load.unloaded()
    assert memory.device_own_loaded == Reading(10 * GIB)
    assert memory.reclaim_complete


async def test_the_peak_is_never_below_what_was_seen_loaded(model: Model) -> None:
    memory = LoadMemory(CPU, model.identity, DeviceWatch(NoAccelerator()))
    await memory.before(ON_CPU)
    await memory.loaded(Reading(1), ON_CPU)
    memory.process_peak = Reading(1)
    await memory.before_unload()
    seen = memory.while_loaded()
    assert seen.process_peak == seen.process_loaded
    assert (seen.process_peak.bytes or 0) > 1


async def test_on_cpu_the_process_is_the_whole_measurement(model: Model) -> None:
    memory = LoadMemory(CPU, model.identity, DeviceWatch(NoAccelerator()))
    await memory.before(ON_CPU)
    await memory.loaded(process_bytes(model.identity), ON_CPU)
    assert (await memory.after_exit()).reclaim_reason == STILL_THERE  # it runs on
    memory.dropped(ON_CPU, ON_CPU)
    model.end()
    seen = await memory.after_exit()
    assert (seen.reclaim_complete, seen.reclaim_reason, seen.process_after) == (True, "", Reading(0))
    assert seen.reclaimed == seen.process_private_loaded
    for name, reading in parts(seen).items():
        if name.startswith(("allocator", "device")):
            assert reading.bytes is None
            assert "cpu" in (reading.unavailable or ""), name


async def test_every_reading_is_a_number_or_a_reason_and_never_both(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load("reclaim_at_once", model, monkeypatch)
    for memory in (load.memory.while_loaded(), await load.loaded(), await load.unloaded()):
        assert not any(value is msgspec.UNSET for value in msgspec.structs.asdict(memory).values())
        for name, reading in parts(memory).items():
            assert (reading.bytes is None) is bool(reading.unavailable), name
        msgspec.convert(msgspec.to_builtins(memory), Memory)  # within the contract's bounds


def test_the_slack_is_what_a_driver_may_move_and_not_a_model() -> None:
    assert SLACK_BYTES < 100 * 1024**2
