"""Claims: the grant of a lease, and what stands against it.

A grant goes to the node's current generation, for the next attempt, with a token that is told once and kept as
its SHA-256. A holder that claims again never heard of its grant: it gets the next attempt, unless it was asked to
stop meanwhile; then the work is cancelled, for nobody does it.

Work that needs device memory is granted only with a reservation of it (`domain.admission`). Where that cannot
be, the claim is answered with the refusal and the work has failed: asking again would not make room.
"""

from __future__ import annotations

from typing import Any

import msgspec

from domain.admission import admit
from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.states import ArtifactState, NodeState, ProfileState, WorkState, stream_of
from domain.leases import end_hold, fail, hash_token, lease_ended, run_limit_ms
from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.commands import ClaimLease
from schemas.events import LeaseGranted
from schemas.tokens import ATTEMPTS_MAX
from schemas.work import JobSpec, ProbeSpec, VerifySpec, WorkOrder


def claim(command: ClaimLease, world: World) -> Outcome:
    work = world.get(WorkState, "work", command.work_id)
    node = world.get(NodeState, "node", command.node_id)
    refused = _claim_refused(command, work, node)
    if refused is not None or work is None or node is None:
        return refused or Rejected(Code.UNKNOWN_STREAM, f"there is no work {command.work_id}")
    stamp = world.stamp(command)
    if work.lease is not None and work.cancel_requested:
        return _stopped(work, world, stamp)
    order = _order(work, world)
    if isinstance(order, Rejected):
        return order
    reserved = admit(work, command.devices, world)
    if isinstance(reserved, Rejected):
        result = {"work_id": work.work_id, "refused": str(reserved.code), "message": reserved.message}
        return Accepted(fail(work, reserved.code, reserved.message, stamp), result)
    token = world.ids.secret()
    until_ms = world.now_ms + world.limits.lease_ms
    deadline_ms = world.now_ms + run_limit_ms(work.kind, order["profile"])
    attempt = work.attempt + 1
    events: list[Recorded] = []
    if work.lease is not None:  # the same worker asks again: its first grant got lost on the way
        events.append(lease_ended(work, Code.LEASE_ENDED, "claimed again by its holder", world, stamp, again=True))
    granted = LeaseGranted(
        work_id=work.work_id, node_id=node.node_id, generation=node.generation, attempt=attempt,
        token_sha256=hash_token(token), until_ms=until_ms, deadline_ms=deadline_ms, reserved=reserved, **stamp,
    )  # fmt: skip
    events.append(Recorded(stream_of("work", work.work_id), granted))
    full = WorkOrder(
        work_id=work.work_id, kind=work.kind, attempt=attempt, generation=node.generation, token="",
        lease_ms=world.limits.lease_ms, until_ms=until_ms, deadline_ms=deadline_ms, spec=work.spec, **order,
    )  # fmt: skip
    secret = msgspec.to_builtins(msgspec.structs.replace(full, token=token))
    return Accepted(events, {"work_id": work.work_id, "attempt": attempt}, secret)


def _stopped(work: WorkState, world: World, stamp: dict[str, Any]) -> Accepted:
    """The end of work whose holder does not know that it holds it, and that was to stop."""
    message = f"{work.kind} {work.work_id} was cancelled before its holder had heard of the lease"
    result = {"work_id": work.work_id, "refused": str(Code.WORK_CANCELLED), "message": message}
    return Accepted(end_hold(work, Code.LEASE_ENDED, "claimed again by its holder", world, stamp), result)


def _claim_refused(command: ClaimLease, work: WorkState | None, node: NodeState | None) -> Rejected | None:
    if work is None or node is None:
        missing = f"work {command.work_id}" if work is None else f"node {command.node_id}"
        return Rejected(Code.UNKNOWN_STREAM, f"there is no {missing}")
    if work.node_id != node.node_id:
        return Rejected(Code.WORK_NOT_YOURS, f"work {work.work_id} is for node {work.node_id}")
    if not node.enabled:
        return Rejected(Code.NODE_DISABLED, f"node {node.node_id} is disabled")
    if command.generation != node.generation or node.session != "alive":
        return Rejected(
            Code.GENERATION_FENCED,
            f"generation {command.generation} is over; the node is at {node.generation}, session {node.session}",
        )
    if work.ended:
        return Rejected(Code.WORK_ENDED, f"{work.kind} {work.work_id} is {work.stage}")
    if work.lease is not None and work.lease.generation != command.generation:
        return Rejected(Code.LEASE_HELD, f"generation {work.lease.generation} holds it")
    if work.attempt >= ATTEMPTS_MAX:
        return Rejected(Code.WORK_ATTEMPTS_EXHAUSTED, f"{work.attempt} attempts were made")
    return None


def _order(work: WorkState, world: World) -> dict[str, Any] | Rejected:
    """Location, files and profile of a spec, for its WorkOrder."""
    spec = work.spec
    location: str | None = None
    files: list[FileEntry] = []
    if not (isinstance(spec, JobSpec) and spec.verb != "load"):
        artifact = world.get(ArtifactState, "artifact", spec.artifact_id)
        if artifact is None:
            return Rejected(Code.UNKNOWN_STREAM, f"there is no artifact set {spec.artifact_id}")
        location = spec.location if isinstance(spec, VerifySpec) else artifact.verified.get(work.node_id)
        files = artifact.files
        if location is None:
            return Rejected(Code.ARTIFACT_NOT_VERIFIED, f"node {work.node_id} has not verified {spec.artifact_id}")
    profile = None
    if isinstance(spec, ProbeSpec | JobSpec):
        held = world.get(ProfileState, "profile", spec.profile_id)
        profile = held.profile if held is not None else None
    return {"location": location, "files": files, "profile": profile}
