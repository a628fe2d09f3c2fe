"""Device memory as it is shown: the owner's word with its age, the log's reservations, and no zero for silence."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from domain.admission import available_bytes
from projections.rows import NodeRow, ResidencyRow, WorkRow
from schemas.devices import DeviceReading, Reservation
from schemas.live import LiveAnswer
from services.cli.look.devices import brief, cells
from services.cli.screen.formats import UNAVAILABLE
from services.client.devices import DeviceNow, devices_now
from tests.fake_wire import live_answer, node, residency, work

GIB = 1024**3
RESERVE = GIB // 2
READING = DeviceReading(0, 80 * GIB, 30 * GIB, 20 * GIB, 10 * GIB)
NAMES = {"dep0123456789ab": "search"}


def gpu_node(*indices: int, **fields: Any) -> NodeRow:
    devices = [{"kind": "cpu", "index": 0, "name": "x86_64"}]
    devices += [{"kind": "cuda", "index": index, "name": "H100"} for index in indices or (0,)]
    return node(environment={"devices": devices}, **fields)


def told(*readings: DeviceReading, age_ms: int | None = 400, **fields: Any) -> LiveAnswer:
    answer = replace(live_answer(), devices=list(readings), devices_age_ms=age_ms, device_reserve_bytes=RESERVE)
    return replace(answer, **fields)


def resident(reserved: int | None = 16 * GIB, device: int | None = 0) -> ResidencyRow:
    return replace(residency(), reserved_bytes=reserved, reserved_device=device)


def pending(reserved: int = 4 * GIB, **fields: Any) -> WorkRow:
    return work("loading", kind="probe", deployment_id=None, reserved_bytes=reserved, reserved_device=0, **fields)


def only(answer: LiveAnswer | None, the_node: NodeRow | None = None, **held: Any) -> DeviceNow:
    (device,) = devices_now(the_node or gpu_node(), answer, held.get("residencies", []), held.get("work", []), NAMES)
    return device


def test_the_owners_reading_with_its_age_and_generation() -> None:
    device = only(told(READING))
    assert (device.total_bytes, device.used_bytes) == (80 * GIB, 30 * GIB)
    assert (device.own_bytes, device.external_bytes) == (20 * GIB, 10 * GIB)
    assert (device.age_ms, device.generation, device.name) == (400, "3", "H100")
    assert (device.reserve_bytes, device.unavailable, device.unattributed) == (RESERVE, None, None)


def test_free_for_admission_is_admissions_own_sum() -> None:
    device = only(told(READING), residencies=[resident(24 * GIB)], work=[pending(4 * GIB)])
    numbers = Reservation(0, 0, "measured", 80 * GIB, 30 * GIB, RESERVE, 24 * GIB, 4 * GIB, own_bytes=20 * GIB)
    assert device.available_bytes == available_bytes(numbers) == 80 * GIB - 10 * GIB - 28 * GIB - RESERVE
    assert (device.reserved_bytes, len(device.reserved_by)) == (28 * GIB, 2)
    full = only(told(READING), residencies=[resident(79 * GIB)])
    assert full.available_bytes == 0  # a measured nothing: too much is reserved


def test_reservations_are_named_and_only_those_of_this_device_count() -> None:
    held = only(
        told(READING),
        residencies=[resident(), resident(None, None), resident(device=1), replace(resident(), node_id="other")],
        work=[pending(), work("loading"), pending(ident="elsewhere", node_id="other")],
    )
    assert [(each.kind, each.name, each.bytes, each.pending) for each in held.reserved_by] == [
        ("deployment", "search", 16 * GIB, False),
        ("probe", "", 4 * GIB, True),
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "does not answer"),
        (told(READING, generation="2"), "generation 2 answered; the log's is 3"),
        (told(READING, serving=False), "stopped serving"),
        (told(age_ms=None), "not measured yet"),
        (told(), "told nothing of it"),
        (told(DeviceReading(0, unavailable="NVML: GPU is lost")), "NVML: GPU is lost"),
    ],
)  # fmt: skip
def test_what_nobody_measured_is_unavailable_with_the_reason_and_never_zero(
    answer: LiveAnswer | None, why: str
) -> None:
    device = only(answer, residencies=[resident()])
    numbers = (device.total_bytes, device.used_bytes, device.own_bytes, device.external_bytes, device.available_bytes)
    assert numbers == (None,) * 5
    assert why in (device.unavailable or "")
    assert device.reserved_bytes == 16 * GIB  # the log's word stands
    shown = cells(device)
    assert shown[3:7] == (UNAVAILABLE,) * 4
    assert shown[10] == UNAVAILABLE
    assert why in str(shown[-1])


def test_use_that_cannot_be_attributed_says_why_and_residents_count_as_reserved() -> None:
    unattributed = DeviceReading(0, 80 * GIB, 30 * GIB, unattributed="other pids")
    device = only(told(unattributed), residencies=[resident()])
    assert (device.own_bytes, device.external_bytes, device.unattributed) == (None, None, "other pids")
    assert device.available_bytes == 50 * GIB - RESERVE
    assert cells(device)[5:7] == (UNAVAILABLE, UNAVAILABLE)
    assert cells(device)[-1] == "other pids"


def test_without_the_control_planes_reserve_nothing_is_promised() -> None:
    device = only(told(READING, device_reserve_bytes=None))
    assert (device.available_bytes, device.reserve_bytes) == (None, None)
    assert device.used_bytes == 30 * GIB


def test_every_registered_device_is_listed_and_a_processor_is_none() -> None:
    found = devices_now(gpu_node(0, 1), told(READING), [], [], {})
    assert [(each.index, each.unavailable) for each in found] == [(0, None), (1, "the worker told nothing of it")]
    assert devices_now(node(), told(), [], [], {}) == []


def test_brief() -> None:
    assert brief(None) is None
    assert brief(told()) is None
    two = told(READING, DeviceReading(1, unavailable="NVML: GPU is lost"))
    assert brief(two) == "0: 30.0 GiB of 80.0 GiB used; 1: unavailable"
