"""Admission: device memory is reserved before work that needs it is granted, on what was measured just then.

Probes and loads under a profile for `cuda` need memory on one device. The need of a load is what its candidate's
probe measured on the device; the need of a probe, which nobody has measured yet, is estimated from the size of
the weights. What may be promised rests on the reading that the claim carries:

    free now     = total - used - pending               (pending: reserved by leased work, perhaps not yet taken)
    promised     = total - external - resident - pending (external: used by processes that are not this worker's)
    available    = min(free now, promised) - reserve

Both bounds count: residents may hold more than they reserved (free now sees it) or less so far than they will
(promised sees it). Where the driver does not attribute memory to our processes, residents are taken to hold what
they reserved. Work that does not fit has failed with DEVICE_MEMORY_SHORT; it does not wait, and is not retried.

A reservation is part of the grant. It ends with the lease, or, for a load that completes, goes over to the
residency and ends with that; a lost session and a disabled node end both. Nothing is measured or reserved for
profiles on `cpu`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from domain.deciding.outcomes import Rejected
from domain.deciding.world import World
from domain.folding.fleet import Fleet, Held
from domain.folding.states import ArtifactState, CandidateState, DeploymentState, ProfileState, WorkState
from schemas.codes import Code
from schemas.devices import DeviceReading, Reservation
from schemas.evidence import Assessed, Memory, Probed, Reading
from schemas.work import JobSpec, ProbeSpec

ESTIMATE_PERCENT = 150  # of the weights' size: room for what the runtime and one small inference take beside them

Source = Literal["measured", "estimated"]


class Need(NamedTuple):
    device_index: int
    bytes: int
    source: Source


class Promised(NamedTuple):
    """What is reserved on one device already: by residents, and by leased work that is still on its way."""

    resident: int
    pending: int


def admit(work: WorkState, devices: list[DeviceReading], world: World) -> Reservation | Rejected | None:
    """The reservation that this grant makes, None where it needs none, or why it cannot be made."""
    need = need_of(work, world)
    if need is None:
        return None
    reading = next((each for each in devices if each.index == need.device_index), None)
    if reading is None or reading.total_bytes is None or reading.used_bytes is None:
        why = "the worker told nothing of it" if reading is None else reading.unavailable or "it could not be measured"
        return _short(need, f"how much is free is not known: {why}", {})
    promised = promised_on(world.fleet, work.node_id, need.device_index, f"work-{work.work_id}")
    reservation = Reservation(
        device_index=need.device_index, needed_bytes=need.bytes, source=need.source, total_bytes=reading.total_bytes,
        used_bytes=reading.used_bytes, own_bytes=reading.own_bytes, reserve_bytes=world.limits.device_reserve_bytes,
        resident_bytes=promised.resident, pending_bytes=promised.pending,
    )  # fmt: skip
    available = max(available_bytes(reservation), 0)
    if need.bytes > available:
        free = (
            f"{available} bytes are available ({reading.used_bytes} of {reading.total_bytes} bytes are in use, "
            f"{promised.resident + promised.pending} reserved, {reservation.reserve_bytes} kept free)"
        )
        return _short(need, free, {"available_bytes": str(available)})
    return reservation


def available_bytes(r: Reservation) -> int:
    """What may be promised at the moment these numbers are of; negative where too much is in use already."""
    free_now = r.total_bytes - r.used_bytes - r.pending_bytes
    own_bytes = r.resident_bytes if r.own_bytes is None else r.own_bytes
    external = max(r.used_bytes - own_bytes, 0)
    return min(free_now, r.total_bytes - external - r.resident_bytes - r.pending_bytes) - r.reserve_bytes


def promised_on(fleet: Fleet, node_id: str, device_index: int, besides: str = "") -> Promised:
    """What is reserved on a device, leaving out what the stream `besides` has itself."""
    held = [
        each
        for stream, each in fleet.reserved_on.get(node_id, {}).items()
        if stream != besides and each.reservation.device_index == device_index
    ]
    return Promised(_sum(held, pending=False), _sum(held, pending=True))


def _sum(held: list[Held], *, pending: bool) -> int:
    return sum(each.reservation.needed_bytes for each in held if each.pending is pending)


def _short(need: Need, free: str, detail: dict[str, str]) -> Rejected:
    message = f"unsatisfiable: device {need.device_index}: {need.bytes} bytes are needed ({need.source}); {free}"
    return Rejected(Code.DEVICE_MEMORY_SHORT, message, {"needed_bytes": str(need.bytes), **detail})


def need_of(work: WorkState, world: World) -> Need | None:
    """How much of which device this work needs, None where it needs none."""
    spec = work.spec
    if work.kind not in ("probe", "load") or not isinstance(spec, ProbeSpec | JobSpec):
        return None
    profile = world.get(ProfileState, "profile", spec.profile_id)
    if profile is None or profile.profile.device != "cuda":
        return None
    measured = _measured(spec, world) if isinstance(spec, JobSpec) else None
    if measured is not None:
        return Need(profile.profile.device_index, measured, "measured")
    return Need(profile.profile.device_index, _estimated(profile, spec, world), "estimated")


def _measured(spec: JobSpec, world: World) -> int | None:
    """What the candidate's probe saw its model take of the device."""
    deployment = world.get(DeploymentState, "deployment", spec.deployment_id)
    candidate = world.get(CandidateState, "candidate", deployment.candidate_id) if deployment is not None else None
    probe = world.get(WorkState, "work", candidate.candidate_id) if candidate is not None else None
    if probe is None or not isinstance(probe.result, Probed):
        return None
    return device_bytes(probe.result.memory)


def device_bytes(memory: Memory) -> int | None:
    """What the driver counts for the probe's process. Where it does not tell, the larger of two: what the runtime's
    allocator counted, and what the whole device's use grew by. None where nothing was measured.

    The allocator knows nothing of the driver's context; the growth has in it what others took and gave back meanwhile.
    """
    own = memory.device_own_loaded
    if isinstance(own, Reading) and own.bytes:
        return max(own.bytes, memory.allocator_loaded.bytes or 0)
    before, loaded = memory.device_used_before.bytes, memory.device_used_loaded.bytes
    growth = loaded - before if before is not None and loaded is not None else 0
    taken = max(memory.allocator_loaded.bytes or 0, growth)
    return taken if taken > 0 else None


def _estimated(profile: ProfileState, spec: ProbeSpec | JobSpec, world: World) -> int:
    """From the weights' size as the assessment gives it; without it, from the size of the whole set."""
    assessment_id = spec.assessment_id if isinstance(spec, ProbeSpec) else profile.assessment_id
    assessment = world.get(WorkState, "work", assessment_id)
    weights = assessment.result.weights_bytes if assessment and isinstance(assessment.result, Assessed) else None
    if weights is None:
        artifact = world.get(ArtifactState, "artifact", spec.artifact_id)
        weights = artifact.bytes if artifact is not None else 0
    return weights * ESTIMATE_PERCENT // 100
