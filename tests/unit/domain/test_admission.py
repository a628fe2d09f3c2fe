"""Admission by measured device memory: what is needed, what is free, what is reserved, and when that ends.

Sizes are small and made up: the device has 100,000 bytes, of which 1,000 are always left free.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from domain.admission import available_bytes, device_bytes
from domain.folding.states import CandidateState
from schemas import commands as c
from schemas import events as ev
from schemas import evidence as se
from schemas.codes import Code
from schemas.devices import DeviceReading, Reservation
from schemas.profiles import RuntimeProfile
from tests.unit.domain import statements as says
from tests.unit.domain.story import ADAPTER, TASK, Line, Story, audited

TOTAL = 100_000
CUDA = RuntimeProfile(adapter=ADAPTER, task=TASK, device="cuda")
ESTIMATED = 1_650  # 150 % of the story's set of 1,100 bytes, whose assessment tells no weights


def reading(used: int = 0, own: int | None = 0, index: int = 0) -> DeviceReading:
    external = None if own is None else used - own
    return DeviceReading(index, TOTAL, used, own, external)


def candidate_of(story: Story, needs: int) -> CandidateState:
    """An approved candidate whose probe saw its model take this much of the device."""
    story.devices = [reading()]
    work_id = story.probe(CUDA)
    story.finish(work_id, says.probed(story.fingerprint(), memory=says.on_device(None, 500, 500 + needs)))
    candidate = story.get(CandidateState, f"candidate-{work_id}")
    story.approve(candidate)
    return candidate


def loaded(story: Story, candidate: CandidateState, name: str) -> str:
    deployment_id = story.deploy(candidate, name)
    story.load(deployment_id)
    return deployment_id


def held(story: Story, node_id: str = "n1") -> int:
    return sum(each.reservation.needed_bytes for each in story.world.fleet.reserved_on.get(node_id, {}).values())


def short(story: Story, work_id: str) -> str:
    """A claim that cannot be admitted: its work has failed, and the message says why."""
    result = story.ask_for(work_id).result
    work = story.work(work_id)
    assert (result["refused"], result["message"]) == ("DEVICE_MEMORY_SHORT", work.message)
    assert (work.stage, work.code, work.lease) == ("failed", Code.DEVICE_MEMORY_SHORT, None)
    return work.message


# --- what is needed -----------------------------------------------------------------------------------------


def test_a_first_probe_needs_what_its_weights_let_expect(story: Story) -> None:
    story.devices = [reading()]
    work_id = story.probe(CUDA)
    story.claim(work_id)
    reserved = story.work(work_id).reserved
    assert reserved is not None
    assert (reserved.needed_bytes, reserved.source) == (ESTIMATED, "estimated")


def test_the_assessments_own_figure_comes_before_the_size_of_the_set(story: Story) -> None:
    story.devices = [reading()]
    story.enrol()
    story.start_worker()
    artifact_id = story.verified_artifact()
    place: dict[str, Any] = {"artifact_id": artifact_id, "node_id": "n1"}
    assessment_id = story.work_for(c.RequestAssessment, adapter=ADAPTER, task=TASK, **place)
    story.finish(assessment_id, replace(says.assessed(story.fingerprint()), weights_bytes=10_000))
    profile_id = story.accept(c.CreateProfile, assessment_id=assessment_id, profile=CUDA).result["profile_id"]
    work_id = story.work_for(c.RequestProbe, assessment_id=assessment_id, profile_id=profile_id)
    story.claim(work_id)
    reserved = story.work(work_id).reserved
    assert reserved is not None
    assert reserved.needed_bytes == 15_000


def test_a_load_needs_what_its_probe_measured(story: Story) -> None:
    deployment_id = story.deploy(candidate_of(story, 40_000))
    work_id = story.job(deployment_id, "load")
    story.claim(work_id)
    reserved = story.work(work_id).reserved
    assert reserved == Reservation(0, 40_000, "measured", TOTAL, 0, 1_000, 0, 0, own_bytes=0)


@pytest.mark.parametrize(
    ("allocator", "before", "after", "taken"),
    [(700, 100, 1_000, 900), (950, 100, 1_000, 950), (700, None, 1_000, 700), (None, 100, 1_000, 900),
     (None, None, None, None), (None, 1_000, 400, None), (0, None, None, None)],
)  # fmt: skip
def test_what_a_probe_measured_is_the_larger_of_two_instruments(
    allocator: int | None, before: int | None, after: int | None, taken: int | None
) -> None:
    assert device_bytes(says.on_device(allocator, before, after)) == taken


def test_what_others_took_during_the_probe_is_not_the_models_need() -> None:
    memory = says.on_device(100, 1_000, 1_900)
    assert device_bytes(replace(memory, device_own_loaded=se.Reading(bytes=135))) == 135
    unattributed = se.Reading(unavailable="NVML tells no memory per process here")
    assert device_bytes(replace(memory, device_own_loaded=unattributed)) == 900


def test_a_candidate_whose_probe_measured_no_device_falls_back_to_the_estimate(story: Story) -> None:
    story.devices = [reading()]
    work_id = story.probe(CUDA)
    story.finish(work_id, says.probed(story.fingerprint()))
    candidate = story.get(CandidateState, f"candidate-{work_id}")
    story.approve(candidate)
    load_id = story.job(story.deploy(candidate), "load")
    story.claim(load_id)
    reserved = story.work(load_id).reserved
    assert reserved is not None
    assert (reserved.needed_bytes, reserved.source) == (ESTIMATED, "estimated")


def test_cpu_profiles_reserve_nothing_and_need_no_reading(story: Story) -> None:
    story.resident()
    assert [event for event in story.events(ev.LeaseGranted) if getattr(event, "reserved", None)] == []
    assert held(story) == 0


# --- what is free -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "own", "resident", "pending", "available"),
    [
        (0, 0, 0, 0, 99_000),
        (30_000, 0, 0, 0, 69_000),  # others hold 30,000
        (30_000, 30_000, 30_000, 0, 69_000),  # a resident holds what it reserved: not counted twice
        (10_000, 10_000, 30_000, 0, 69_000),  # a resident that will take more yet
        (50_000, 50_000, 30_000, 0, 49_000),  # a resident that took more than it reserved
        (30_000, 30_000, 30_000, 20_000, 49_000),  # and a load under way
        (30_000, None, 30_000, 0, 69_000),  # nobody tells whose it is: taken to be the resident's
        (40_000, None, 30_000, 0, 59_000),
        (99_500, 0, 0, 0, -500),
    ],
)
def test_what_may_be_promised(used: int, own: int | None, resident: int, pending: int, available: int) -> None:
    numbers = Reservation(0, 0, "measured", TOTAL, used, 1_000, resident, pending, own_bytes=own)
    assert available_bytes(numbers) == available


def test_residents_and_work_under_way_leave_less_for_the_next(story: Story) -> None:
    candidate = candidate_of(story, 40_000)
    loaded(story, candidate, "one")
    story.devices = [reading(used=40_000, own=40_000)]
    under_way = story.job(story.deploy(candidate, "two"), "load")
    story.claim(under_way)
    third = story.deploy(candidate, "three")
    message = short(story, story.job(third, "load"))
    assert "40000 bytes are needed (measured)" in message
    assert "19000 bytes are available (40000 of 100000 bytes are in use, 80000 reserved, 1000 kept free)" in message
    assert message.startswith("unsatisfiable: device 0")
    assert story.residency(third) == "failed"
    assert held(story) == 80_000


def test_others_on_the_device_are_never_counted_as_free(story: Story) -> None:
    candidate = candidate_of(story, 40_000)
    story.devices = [reading(used=70_000, own=0)]
    assert "29000 bytes are available" in short(story, story.job(story.deploy(candidate), "load"))


def test_a_device_that_was_not_measured_admits_nothing(story: Story) -> None:
    candidate = candidate_of(story, 40_000)
    for devices, why in (
        ([], "the worker told nothing of it"),
        ([reading(index=1)], "the worker told nothing of it"),
        ([DeviceReading(0, unavailable="NVML: Driver Not Loaded")], "NVML: Driver Not Loaded"),
    ):
        story.devices = devices
        message = short(story, story.job(story.deploy(candidate, f"d{len(story.lines)}"), "load"))
        assert f"40000 bytes are needed (measured); how much is free is not known: {why}" in message


def test_each_device_has_its_own_account(story: Story) -> None:
    story.devices = [reading(), reading(index=1)]
    first = story.probe(replace(CUDA, device_index=1))
    story.claim(first)
    story.finish(first, says.probed(story.fingerprint(), memory=says.on_device(None, 0, 60_000)))
    candidate = story.get(CandidateState, f"candidate-{first}")
    story.approve(candidate)
    loaded(story, candidate, "one")
    reserved = story.world.fleet.reserved_on["n1"]
    assert [each.reservation.device_index for each in reserved.values()] == [1]
    other = story.probe(CUDA)
    story.claim(other)
    assert story.work(other).reserved == Reservation(0, ESTIMATED, "estimated", TOTAL, 0, 1_000, 0, 0, own_bytes=0)


def test_a_shortage_is_neither_retried_nor_a_crash(story: Story) -> None:
    deployment_id = story.deploy(candidate_of(story, 40_000))
    story.devices = [reading(used=90_000)]
    for _ in range(5):
        work_id = story.job(deployment_id, "load")
        short(story, work_id)
        assert story.refuse(c.ClaimLease, work_id=work_id, node_id="n1", generation="1").code is Code.WORK_ENDED
    assert story.events(ev.CircuitOpened) == []
    story.devices = [reading()]
    story.load(deployment_id)


# --- how long a reservation lasts ---------------------------------------------------------------------------


def test_a_resident_keeps_what_its_load_reserved_until_it_is_unloaded(story: Story) -> None:
    deployment_id = loaded(story, candidate_of(story, 40_000), "one")
    assert held(story) == 40_000
    story.finish(story.job(deployment_id, "drain"), says.drained())
    cancelled = story.job(deployment_id, "unload")
    story.accept(c.CancelWork, work_id=cancelled)
    unload = story.job(deployment_id, "unload")
    story.claim(unload)
    assert held(story) == 40_000
    story.say(unload, says.unloaded())
    assert held(story) == 0


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired", "released", "deadline"])
def test_a_load_that_ends_gives_back(story: Story, end: str) -> None:
    work_id = story.job(story.deploy(candidate_of(story, 40_000)), "load")
    order = story.claim(work_id)
    assert held(story) == 40_000
    if end == "failed":
        story.say(work_id, says.failed())
    elif end == "cancelled":
        story.accept(c.CancelWork, work_id=work_id)
        assert held(story) == 40_000  # until its holder says that it has stopped
        story.say(work_id, se.WorkCancelled("loading"))
    elif end == "expired":
        story.wait(order.lease_ms + 1)
        story.accept(c.ExpireLease, work_id=work_id, attempt=order.attempt)
    elif end == "released":
        story.accept(
            c.ReleaseLease, work_id=work_id, generation=order.generation, attempt=order.attempt, token=order.token
        )
    else:
        story.wait(order.deadline_ms - story.world.now_ms + 1)
        story.accept(c.PassDeadline, work_id=work_id)
    assert held(story) == 0


@pytest.mark.parametrize("end", ["died", "session", "takeover", "left", "disabled"])
def test_what_is_lost_gives_back(story: Story, end: str) -> None:
    deployment_id = story.deploy(candidate_of(story, 40_000))
    load_id = story.load(deployment_id)
    story.claim(story.probe(CUDA))
    assert held(story) == 40_000 + ESTIMATED
    if end == "died":
        story.say(load_id, se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9"))
        assert held(story) == ESTIMATED
        return
    if end == "session":
        story.accept(c.LoseSession, node_id="n1", generation="1", silent_ms=10_001)
    elif end == "takeover":
        story.start_worker()
    elif end == "left":
        story.accept(c.LeaveWorker, node_id="n1", generation="1", credential="the node's own credential")
    else:
        story.accept(c.DisableNode, node_id="n1")
    assert held(story) == 0


def test_a_claim_made_anew_does_not_stand_in_its_own_way(story: Story) -> None:
    work_id = story.job(story.deploy(candidate_of(story, 60_000)), "load")
    story.claim(work_id)
    assert story.claim(work_id).attempt == 2
    assert held(story) == 60_000


# --- the log alone ------------------------------------------------------------------------------------------


def test_the_auditor_finds_what_was_promised_twice(story: Story) -> None:
    candidate = candidate_of(story, 40_000)
    loaded(story, candidate, "one")
    story.claim(story.job(story.deploy(candidate, "two"), "load"))
    place = next(
        place for place in reversed(range(len(story.lines))) if isinstance(story.lines[place].event, ev.LeaseGranted)
    )

    def violations(**numbers: Any) -> list[str]:
        line = story.lines[place]
        assert isinstance(line.event, ev.LeaseGranted)
        assert line.event.reserved is not None
        event = replace(line.event, reserved=replace(line.event.reserved, **numbers))
        lines: list[Line] = [*story.lines[:place], line._replace(event=event), *story.lines[place + 1 :]]
        return [finding.what for finding in audited(lines).violations]

    assert violations(used_bytes=60_000) == ["reserved more of device 0 than was measured free"]
    assert violations(needed_bytes=70_000) == ["reserved more of device 0 than was measured free"]
    assert violations(resident_bytes=0) == ["40000 bytes of device 0 were reserved, and it says otherwise"]


def test_the_auditor_finds_a_resident_that_kept_less(story: Story) -> None:
    loaded(story, candidate_of(story, 40_000), "one")
    line = story.lines[-1]
    assert isinstance(line.event, ev.ResidencyChanged)
    lines = [*story.lines[:-1], line._replace(event=replace(line.event, reserved=None))]
    whats = [finding.what for finding in audited(lines).violations]
    assert whats == ["resident with another reservation than its load had"]
