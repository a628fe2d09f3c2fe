"""What may be said about the memory of a node's devices *now*: the worker's reading next to the log's reservations.

A reading is the word of the worker that owns the node now, with its age. Silence, an answer of another generation
and one of a worker that has stopped serving are no reading. Which devices there are is the log's word (the
environment the worker registered with), so that a device nobody speaks for is listed with the reason, not left out.

`available_bytes` is what the next admission could promise, by the same sum that decides it (`domain.admission`), with
what is reserved now and what the control plane leaves free. It decides nothing: a claim brings a reading of its own.

Pure: no clock, no bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from domain.admission import available_bytes
from projections.rows import NodeRow, ResidencyRow, WorkRow
from schemas.devices import DeviceReading, Reservation
from schemas.live import LiveAnswer

NO_WORD = "the worker told nothing of it"


class Holder(Struct, frozen=True):
    """Who a reservation is for: a deployment that is held there, or work under way (`pending`)."""

    kind: str
    id: str
    name: str
    bytes: int
    pending: bool


class DeviceNow(Struct, frozen=True, kw_only=True):
    """One device of one node. What was not measured is None, and `unavailable` or `unattributed` says why.

    `generation` is of the worker that told the reading and `age_ms` how old it was when that worker answered.
    `reserved_bytes` is the log's sum over `reserved_by`.
    """

    node_id: str
    index: int
    name: str
    generation: str | None = None
    age_ms: int | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    own_bytes: int | None = None
    external_bytes: int | None = None
    reserved_bytes: int = 0
    reserved_by: list[Holder] = []
    reserve_bytes: int | None = None
    available_bytes: int | None = None
    unavailable: str | None = None
    unattributed: str | None = None


def holders(
    node_id: str, index: int, residencies: Iterable[ResidencyRow], work: Iterable[WorkRow], names: Mapping[str, str]
) -> list[Holder]:
    """Everything that has memory of this device reserved, residents first. `names` are the deployments', by id."""
    found = [
        Holder("deployment", row.deployment_id, names.get(row.deployment_id, ""), row.reserved_bytes, pending=False)
        for row in residencies
        if row.node_id == node_id and row.reserved_device == index and row.reserved_bytes is not None
    ]
    found += [
        Holder(row.kind, row.id, names.get(row.deployment_id or "", ""), row.reserved_bytes, pending=True)
        for row in work
        if row.node_id == node_id and row.reserved_device == index and row.reserved_bytes is not None
    ]
    return sorted(found, key=lambda each: (each.pending, each.name, each.id))


def devices_now(
    node: NodeRow,
    answer: LiveAnswer | None,
    residencies: Iterable[ResidencyRow],
    work: Iterable[WorkRow],
    names: Mapping[str, str],
) -> list[DeviceNow]:
    """Every accelerator that the node registered with or whose reading the worker told, in the driver's order."""
    residencies, work = list(residencies), list(work)
    silent = silence(node, answer)
    told = {each.index: each for each in answer.devices} if answer is not None and silent is None else {}
    known = accelerators(node)
    found = []
    for index in sorted(known.keys() | told.keys()):
        reading = told.get(index) or DeviceReading(index, unavailable=silent or NO_WORD)
        reserved_by = holders(node.id, index, residencies, work, names)
        reserve = answer.device_reserve_bytes if answer is not None and silent is None else None
        found.append(
            DeviceNow(
                node_id=node.id,
                index=index,
                name=known.get(index, ""),
                generation=answer.generation if answer is not None and index in told else None,
                age_ms=answer.devices_age_ms if answer is not None and index in told else None,
                total_bytes=reading.total_bytes,
                used_bytes=reading.used_bytes,
                own_bytes=reading.own_bytes,
                external_bytes=reading.external_bytes,
                reserved_bytes=sum(each.bytes for each in reserved_by),
                reserved_by=reserved_by,
                reserve_bytes=reserve,
                available_bytes=available(reading, reserved_by, reserve),
                unavailable=reading.unavailable,
                unattributed=reading.unattributed,
            )
        )
    return found


def available(reading: DeviceReading, reserved_by: Iterable[Holder], reserve_bytes: int | None) -> int | None:
    """What the next admission could promise; None where a number it needs is not known."""
    if reading.total_bytes is None or reading.used_bytes is None or reserve_bytes is None:
        return None
    reserved_by = list(reserved_by)
    sums = {side: sum(each.bytes for each in reserved_by if each.pending is side) for side in (False, True)}
    numbers = Reservation(
        device_index=reading.index, needed_bytes=0, source="measured", total_bytes=reading.total_bytes,
        used_bytes=reading.used_bytes, own_bytes=reading.own_bytes, reserve_bytes=reserve_bytes,
        resident_bytes=sums[False], pending_bytes=sums[True],
    )  # fmt: skip
    return max(available_bytes(numbers), 0)


def silence(node: NodeRow, answer: LiveAnswer | None) -> str | None:
    """Why there is no reading to be had, None where the current owner answered."""
    if answer is None:
        return "the worker does not answer"
    if answer.node_id != node.id or answer.generation != node.generation:
        return f"generation {answer.generation} answered; the log's is {node.generation}"
    if not answer.serving:
        return "the worker has stopped serving: it could not renew its session"
    if answer.devices_age_ms is None and accelerators(node):
        return "the worker has not measured yet"
    return None


def accelerators(node: NodeRow) -> dict[int, str]:
    """Index to name of the devices the node registered with, without its processor."""
    listed: list[dict[str, Any]] = node.environment.get("devices") or []
    return {int(each["index"]): str(each.get("name", "")) for each in listed if each.get("kind") == "cuda"}
