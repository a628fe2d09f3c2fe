"""Leases of work that were granted (`domain.claims`): renew, release, expire, cancel, and what ends a hold.

Time is the control plane's. Work whose lease ends early is offered again where that is safe (looking, probing,
loading) until ATTEMPTS_MAX; draining, unloading and health of a process that is gone are not repeated, they
fail. Each time work is queued it may wait for `queue_ms`.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.fencing import fence_work
from domain.folding.states import DeploymentState, NodeState, WorkState, stream_of
from schemas.codes import Code
from schemas.commands import CancelWork, ExpireLease, PassDeadline, ReleaseLease, RenewLease
from schemas.devices import Reservation
from schemas.events import (
    CancelRequested,
    LeaseEnded,
    LeaseRenewed,
    ResidencyChanged,
    WorkCancelled,
    WorkFailed,
)
from schemas.profiles import Limits as ProfileLimits
from schemas.profiles import RuntimeProfile
from schemas.tokens import ATTEMPTS_MAX
from schemas.work import JobSpec

REPEATABLE = frozenset({"verify", "assess", "probe", "load"})
BACK_TO_BEFORE = frozenset({"drain", "unload"})  # where nobody has begun, what they were about is as it was
LOOK_MS = 3_600_000  # verify and assess: as long as the disk takes, within an hour
MARGIN_MS = 30_000  # for starting a child and for reporting, on top of the profile's own limits


def renew(command: RenewLease, world: World) -> Outcome:
    work = world.get(WorkState, "work", command.work_id)
    refused = _holder_refused(command, work, world.now_ms)
    if refused is not None or work is None or work.lease is None:
        return refused or Rejected(Code.LEASE_ENDED, "the work has no lease")
    node = world.get(NodeState, "node", work.node_id)
    if node is None or node.session != "alive":
        return Rejected(Code.LEASE_ENDED, "the worker's session is over")
    half_ms = (work.lease.until_ms - work.lease.since_ms) // 2
    if world.now_ms < work.lease.since_ms + half_ms:
        return Rejected(Code.LEASE_RENEWAL_EARLY, f"{work.lease.until_ms - world.now_ms} ms are left of the term")
    until_ms = world.now_ms + world.limits.lease_ms
    event = LeaseRenewed(
        work_id=work.work_id, generation=command.generation, attempt=command.attempt, until_ms=until_ms,
        **world.stamp(command),
    )  # fmt: skip
    result = {"until_ms": until_ms, "lease_ms": world.limits.lease_ms}
    return Accepted([Recorded(stream_of("work", work.work_id), event)], result)


def release(command: ReleaseLease, world: World) -> Outcome:
    work = world.get(WorkState, "work", command.work_id)
    refused = _holder_refused(command, work, world.now_ms)
    if refused is not None or work is None:
        return refused or Rejected(Code.UNKNOWN_STREAM, f"there is no work {command.work_id}")
    detail = command.reason or "given back by its holder"
    return Accepted(end_hold(work, Code.LEASE_ENDED, detail, world, world.stamp(command)))


def expire(command: ExpireLease, world: World) -> Outcome:
    work = world.get(WorkState, "work", command.work_id)
    if work is None or work.lease is None or work.lease.attempt != command.attempt:
        return Accepted()
    if world.now_ms <= work.lease.until_ms:
        return Accepted()
    late_ms = world.now_ms - work.lease.until_ms
    return Accepted(end_hold(work, Code.LEASE_EXPIRED, f"not renewed, {late_ms} ms over", world, world.stamp(command)))


def pass_deadline(command: PassDeadline, world: World) -> Outcome:
    work = world.get(WorkState, "work", command.work_id)
    if work is None or work.ended or world.now_ms <= work.deadline_ms:
        return Accepted()
    message = f"still {work.stage} after {world.now_ms - work.requested_at_ms} ms"
    stamp = world.stamp(command)
    if work.kind in BACK_TO_BEFORE and work.lease is None:  # nobody has begun: it failed, not the resident
        restored = _residency_restored(work, world, stamp, f"{work.kind} not begun in time")
        return Accepted([_failed(work, Code.WORK_DEADLINE, message, stamp), *restored])
    return Accepted(fail(work, Code.WORK_DEADLINE, message, stamp))


def cancel(command: CancelWork, world: World) -> Outcome:
    """Queued work is cancelled now; leased work is asked to stop and its holder says when it has."""
    work = world.get(WorkState, "work", command.work_id)
    if work is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no work {command.work_id}")
    if work.ended:
        return Rejected(Code.WORK_ENDED, f"{work.kind} {work.work_id} is {work.stage} already")
    stamp, stream = world.stamp(command), stream_of("work", work.work_id)
    result = {"work_id": work.work_id}
    if work.lease is not None:
        event = CancelRequested(work_id=work.work_id, reason=command.reason, **stamp)
        return Accepted([] if work.cancel_requested else [Recorded(stream, event)], result)
    cancelled = WorkCancelled(work_id=work.work_id, generation=work.generation, attempt=work.attempt, **stamp)
    if work.kind in BACK_TO_BEFORE:  # nobody has begun: what it was about is as it was
        restored = _residency_restored(work, world, stamp, f"{work.kind} cancelled before it began")
        return Accepted([Recorded(stream, cancelled), *restored], result)
    return Accepted([Recorded(stream, cancelled), *residency_after_cancel(work, stamp)], result)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def run_limit_ms(kind: str, profile: RuntimeProfile | None) -> int:
    """How long leased work of this kind may take in all, renewals included."""
    limits = profile.limits if profile is not None else ProfileLimits()
    run_ms = {
        "probe": limits.load_ms + limits.health_ms + limits.unload_ms,
        "load": limits.load_ms + limits.health_ms,
        "health": limits.health_ms,
        "drain": limits.drain_ms,
        "unload": limits.drain_ms + limits.unload_ms,
    }.get(kind, LOOK_MS)
    return run_ms + MARGIN_MS


# --- what ends a hold ---------------------------------------------------------------------------------------


def end_hold(work: WorkState, cause: Code, detail: str, world: World, stamp: dict[str, Any]) -> list[Recorded]:
    """The lease is over without a result: offer the work again where that is safe, else let it fail."""
    again = work.kind in REPEATABLE and work.attempt < ATTEMPTS_MAX and not work.cancel_requested
    events = [lease_ended(work, cause, detail, world, stamp, again=again)]
    if again:
        return events
    if work.cancel_requested:
        cancelled = WorkCancelled(work_id=work.work_id, generation=work.generation, attempt=work.attempt, **stamp)
        return [*events, Recorded(stream_of("work", work.work_id), cancelled), *residency_after_cancel(work, stamp)]
    code = Code.WORK_ATTEMPTS_EXHAUSTED if work.kind in REPEATABLE else cause
    return [*events, *fail(work, code, f"attempt {work.attempt}: {cause}: {detail}", stamp)]


def fail(work: WorkState, code: Code, message: str, stamp: dict[str, Any]) -> list[Recorded]:
    """The control plane's own word that work has failed, with what that means for a residency."""
    return [_failed(work, code, message, stamp), *residency_after_failure(work, code, message, stamp)]


def _failed(work: WorkState, code: Code, message: str, stamp: dict[str, Any]) -> Recorded:
    failed = WorkFailed(
        work_id=work.work_id, generation=work.generation, attempt=work.attempt, code=code, message=message, **stamp
    )
    return Recorded(stream_of("work", work.work_id), failed)


def residency_after_failure(work: WorkState, code: Code, message: str, stamp: dict[str, Any]) -> list[Recorded]:
    """A load or unload that failed leaves the residency `failed`; drain and health leave it as it was.

    Except a drain or unload that nobody began in time: see `pass_deadline`.
    """
    if work.kind not in ("load", "unload"):
        return []
    if work.kind == "unload" and code is Code.NOT_RESIDENT:  # the worker's word that there is nothing to unload
        return [residency(work, "absent", "0", "the worker does not hold it", stamp)]
    return [residency(work, "failed", work.generation, f"{code}: {message}"[:500], stamp, code=code)]


def residency_after_cancel(work: WorkState, stamp: dict[str, Any]) -> list[Recorded]:
    if work.kind == "load":
        return [residency(work, "absent", "0", "load cancelled", stamp)]
    if work.kind == "unload":
        return [residency(work, "failed", work.generation, "unload cancelled", stamp)]
    return []


def _residency_restored(work: WorkState, world: World, stamp: dict[str, Any], cause: str) -> list[Recorded]:
    """Back to the state that a drain or unload began from, where it still stands at that work."""
    deployment = world.get(DeploymentState, "deployment", work.deployment_id or "")
    held = deployment.residencies.get(work.node_id) if deployment is not None else None
    if held is None or held.work_id != work.work_id:
        return []
    before = "resident" if work.kind == "drain" else held.before  # a drain begins from nothing else
    return [residency(work, before, held.generation, cause, stamp)]


def residency(
    work: WorkState,
    state: Any,
    generation: str,
    cause: str,
    stamp: dict[str, Any],
    *,
    code: Code | None = None,
    reserved: Reservation | None = None,
) -> Recorded:
    if not isinstance(work.spec, JobSpec):
        raise TypeError(f"work {work.work_id} of kind {work.kind} belongs to no deployment")
    event = ResidencyChanged(
        deployment_id=work.spec.deployment_id, node_id=work.node_id, state=state, generation=generation,
        work_id=work.work_id, cause=cause, code=code, reserved=reserved, **stamp,
    )  # fmt: skip
    return Recorded(stream_of("deployment", work.spec.deployment_id), event)


def lease_ended(
    work: WorkState, cause: Code, detail: str, world: World, stamp: dict[str, Any], *, again: bool
) -> Recorded:
    if work.lease is None:
        raise ValueError(f"work {work.work_id} has no lease to end")
    event = LeaseEnded(
        work_id=work.work_id, generation=work.lease.generation, attempt=work.lease.attempt, cause=cause,
        detail=detail, again=again, deadline_ms=world.now_ms + world.limits.queue_ms if again else None, **stamp,
    )  # fmt: skip
    return Recorded(stream_of("work", work.work_id), event)


# --- who holds ----------------------------------------------------------------------------------------------


def _holder_refused(command: RenewLease | ReleaseLease, work: WorkState | None, now_ms: int) -> Rejected | None:
    if work is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no work {command.work_id}")
    reason = fence_work(work, command.generation, command.attempt, now_ms)
    if reason is not None:
        return Rejected(
            reason,
            f"generation {command.generation}, attempt {command.attempt} does not hold {work.kind} {work.work_id}",
        )
    if work.lease is None or not hmac.compare_digest(hash_token(command.token), work.lease.token_sha256):
        return Rejected(Code.LEASE_TOKEN_WRONG, "the token is not the one this lease was granted with")
    return None
