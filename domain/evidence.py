"""Evidence decided: a typed transition, or EvidenceRejected with the reason and the whole evidence.

The worker reports what it saw; what that means is decided here. A probe that loaded but was unhealthy,
kept memory, did not end in order, or could not prove isolation where the profile asks for it, has failed,
whatever it says. So has a verification that did not count every file of the set at the place that was asked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from domain import circuits
from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.fencing import fence_residency, fence_session, fence_work
from domain.folding.fold import evidence_digest, fold
from domain.folding.states import (
    ArtifactState,
    CandidateState,
    DeploymentState,
    NodeState,
    ProfileState,
    WorkState,
    stream_of,
)
from domain.goldens import missed
from domain.leases import residency, residency_after_cancel, residency_after_failure
from schemas import evidence as se
from schemas.canonical import digest_of
from schemas.codes import Code
from schemas.commands import SubmitEvidence
from schemas.events import (
    ArtifactVerified,
    CandidateCreated,
    EvidenceRejected,
    ResidencyChanged,
    WorkCancelled,
    WorkCompleted,
    WorkFailed,
    WorkProgressed,
)
from schemas.work import RUNNING_STAGES, JobSpec, ProbeSpec, VerifySpec

_decode = msgspec.json.Decoder(se.Evidence).decode
# which final statement answers which kind of work
ANSWERS: dict[str, type[Any]] = {
    "verify": se.Verified,
    "assess": se.Assessed,
    "probe": se.Probed,
    "load": se.Loaded,
    "health": se.HealthChecked,
    "drain": se.Drained,
    "unload": se.Unloaded,
}


def submit(command: SubmitEvidence, world: World) -> Outcome:
    try:
        evidence = _decode(command.signed.payload)
    except msgspec.DecodeError as error:
        return Rejected(Code.COMMAND_MALFORMED, f"evidence: {error}")
    node = world.get(NodeState, "node", evidence.node_id)
    if node is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no node {evidence.node_id}")
    work = world.get(WorkState, "work", evidence.work_id)
    reason = _refusal(command, evidence, node, work, world)
    if reason is not None or work is None:
        return _rejected(command, evidence, work, reason or Code.UNKNOWN_STREAM, world)
    return _accept(command, evidence, work, world)


def _refusal(
    command: SubmitEvidence, evidence: se.Evidence, node: NodeState, work: WorkState | None, world: World
) -> Code | None:
    if not command.signature_valid:
        return Code.SIGNATURE_INVALID
    if work is None:
        return Code.UNKNOWN_STREAM
    if work.node_id != node.node_id or evidence.evidence_id != command.command_id:
        return Code.EVIDENCE_MISPLACED
    fenced = fence_session(node, evidence.generation)
    if fenced is not None:
        return fenced
    if isinstance(evidence.statement, se.ResidentLost):
        return _resident_lost_refusal(evidence, evidence.statement, world)
    fenced = fence_work(work, evidence.generation, evidence.attempt, world.now_ms)
    if fenced is not None:
        return fenced
    open_ended = (se.Progress, se.WorkFailed, se.WorkCancelled)
    if not isinstance(evidence.statement, (*open_ended, ANSWERS[work.kind])):
        return Code.EVIDENCE_MISPLACED
    return None


def _resident_lost_refusal(evidence: se.Evidence, statement: se.ResidentLost, world: World) -> Code | None:
    deployment = world.get(DeploymentState, "deployment", statement.deployment_id)
    if deployment is None:
        return Code.UNKNOWN_STREAM
    held = deployment.residencies.get(evidence.node_id)
    if (
        held is None
        or held.generation != evidence.generation
        or held.state not in ("resident", "draining", "unloading")
    ):
        return Code.RESIDENCY_CONFLICT
    return fence_residency(deployment, evidence.node_id, "lost", evidence.generation, held.work_id)


def _rejected(
    command: SubmitEvidence, evidence: se.Evidence, work: WorkState | None, reason: Code, world: World
) -> Accepted:
    stream = stream_of("work", work.work_id) if work is not None else stream_of("node", evidence.node_id)
    event = EvidenceRejected(
        work_id=evidence.work_id, generation=evidence.generation, attempt=evidence.attempt, reason=reason,
        message=f"{type(evidence.statement).__name__} number {evidence.number} does not count",
        signed=command.signed, **world.stamp(command),
    )  # fmt: skip
    return Accepted([Recorded(stream, event)], {"evidence": "rejected", "reason": str(reason)})


def _accept(command: SubmitEvidence, evidence: se.Evidence, work: WorkState, world: World) -> Accepted:
    stamp, statement = world.stamp(command), evidence.statement
    held: dict[str, Any] = {
        "work_id": work.work_id, "generation": evidence.generation, "attempt": evidence.attempt,
        "signed": command.signed, **stamp,
    }  # fmt: skip
    stream = stream_of("work", work.work_id)
    match statement:
        case se.Progress(stage=stage):
            if RUNNING_STAGES.index(stage) < RUNNING_STAGES.index(work.stage):
                return Accepted([], {"evidence": "accepted"})  # delivered late: a later stage is known already
            events = [Recorded(stream, WorkProgressed(stage=stage, **held))]
        case se.WorkFailed(code=code, message=message):
            events = [Recorded(stream, WorkFailed(code=code, message=message, **held))]
            events += residency_after_failure(work, code, message, stamp)
        case se.WorkCancelled():
            events = [Recorded(stream, WorkCancelled(**held)), *residency_after_cancel(work, stamp)]
        case se.ResidentLost():
            events = [_lost(command.signed, evidence, statement, world, stamp)]
        case _:
            events = _complete(evidence, work, held, world, stamp)
    return Accepted([*events, *_circuits(events, world, stamp)], {"evidence": "accepted"})


def _circuits(events: list[Recorded], world: World, stamp: dict[str, Any]) -> list[Recorded]:
    """What an end or a successful load means for the circuit of its deployment and node."""
    found = []
    for stream, event in ((recorded.stream, recorded.event) for recorded in events):
        if not isinstance(event, ResidencyChanged):
            continue
        before = world.get(DeploymentState, "deployment", event.deployment_id)
        after, reason = fold(before, event)
        if reason is None and before is not None and isinstance(after, DeploymentState):
            moved = circuits.follow(before, after, event, stamp)
            found += [Recorded(stream, moved)] if moved is not None else []
    return found


def _complete(
    evidence: se.Evidence, work: WorkState, held: dict[str, Any], world: World, stamp: dict[str, Any]
) -> list[Recorded]:
    statement, stream = evidence.statement, stream_of("work", work.work_id)
    shortfall = _shortfall(statement, work, world)
    if shortfall is not None:
        code, message = shortfall
        failed = WorkFailed(code=code, message=message, **held)
        return [Recorded(stream, failed), *residency_after_failure(work, code, message, stamp)]
    events = [Recorded(stream, WorkCompleted(result=statement, **held))]
    match statement:
        case se.Verified(location=location):
            verified = ArtifactVerified(
                artifact_id=work.spec.artifact_id, node_id=work.node_id, location=location, work_id=work.work_id,
                **stamp,
            )  # fmt: skip
            events.append(Recorded(stream_of("artifact", work.spec.artifact_id), verified))
        case se.Probed():
            events.append(_candidate(work, held["signed"].payload, world, stamp))
        case se.Loaded():
            resident = residency(
                work, "resident", evidence.generation, "loaded and healthy", stamp, reserved=work.reserved
            )
            events.append(resident)
        case se.Drained(in_flight=count):
            events.append(residency(work, "draining", evidence.generation, f"drained, {count} were in flight", stamp))
        case se.Unloaded(memory=memory):
            events.append(residency(work, "absent", "0", _reclaim(memory), stamp))
        case _:
            pass  # assess and health change nothing but their own work
    return events


def _reclaim(memory: se.Memory) -> str:
    """The cause of a residency's end by unloading. Reclaim that was not measured is not complete."""
    if memory.reclaim_complete:
        return "unloaded, reclaim measured"
    why = f": {memory.reclaim_reason}" if memory.reclaim_reason else ""
    return f"{Code.RECLAIM_INCOMPLETE}{why}"[:500]


def _shortfall(statement: Any, work: WorkState, world: World) -> tuple[Code, str] | None:
    """Why a final statement does not amount to success."""
    if isinstance(statement, se.Verified) and isinstance(work.spec, VerifySpec):
        return _verify_shortfall(statement, work.spec, world)
    if not isinstance(statement, se.Probed | se.Loaded):
        return None
    health = statement.health
    if not (health.process and health.runtime and health.model and health.capability):
        return Code.HEALTH_FAILED, health.detail or "a health layer failed"
    if not health.output_digest or health.output_dimensions == 0:  # None: a task whose output has no dimensions
        return Code.HEALTH_FAILED, "the health check gave no output"
    expected = _expected_fingerprint(work, world)
    if statement.fingerprint != expected:
        return Code.ENVIRONMENT_CHANGED, f"ran on {statement.fingerprint}, expected {expected}"
    spec = work.spec
    if isinstance(spec, ProbeSpec | JobSpec):
        profile = world.get(ProfileState, "profile", spec.profile_id)
        if profile is not None and profile.profile.require_offline_proof and not statement.offline.proven:
            return Code.OFFLINE_NOT_PROVEN, "the profile asks for proof of isolation and there is none"
        miss = missed(profile.profile, health) if profile is not None else ""
        if miss:
            return Code.GOLDEN_MISSED, miss
    if isinstance(statement, se.Probed) and not statement.memory.reclaim_complete:
        why = statement.memory.reclaim_reason or "not all came back"
        return Code.RECLAIM_INCOMPLETE, f"the probe's memory was not seen to be given back: {why}"
    if isinstance(statement, se.Probed) and statement.child_exit_code != 0:
        return Code.CHILD_DIED, f"the probe's model process {_how(statement.child_exit_code)} on unloading"
    return None


def _how(exit_code: int) -> str:
    return f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _verify_shortfall(statement: se.Verified, spec: VerifySpec, world: World) -> tuple[Code, str] | None:
    artifact = world.get(ArtifactState, "artifact", spec.artifact_id)
    if artifact is None:
        return Code.UNKNOWN_STREAM, f"there is no artifact set {spec.artifact_id}"
    expected = (spec.location, len(artifact.files), artifact.bytes)
    seen = (statement.location, statement.files, statement.bytes)
    if seen != expected:
        return Code.ARTIFACT_NOT_VERIFIED, f"location, files and bytes are {seen}, asked were {expected}"
    return None


def _expected_fingerprint(work: WorkState, world: World) -> str | None:
    if isinstance(work.spec, ProbeSpec):
        return work.spec.fingerprint
    deployment = world.get(DeploymentState, "deployment", work.deployment_id or "")
    return deployment.fingerprint if deployment is not None else None


def _candidate(work: WorkState, payload: str, world: World, stamp: dict[str, Any]) -> Recorded:
    spec = work.spec
    if not isinstance(spec, ProbeSpec):
        raise TypeError(f"work {work.work_id} is no probe")
    profile = world.get(ProfileState, "profile", spec.profile_id)
    if profile is None or world.get(CandidateState, "candidate", work.work_id) is not None:
        raise LookupError(f"probe {work.work_id} has lost its profile or has a candidate already")
    evidence_sha256 = evidence_digest(payload)
    named: dict[str, Any] = {
        "artifact_id": spec.artifact_id, "profile_id": spec.profile_id, "fingerprint": spec.fingerprint,
        "probe_id": work.work_id, "evidence_sha256": evidence_sha256,
    }  # fmt: skip
    event = CandidateCreated(
        candidate_id=work.work_id, candidate_digest=digest_of(named), node_id=work.node_id,
        adapter=profile.profile.adapter, task=profile.profile.task, **named, **stamp,
    )  # fmt: skip
    return Recorded(stream_of("candidate", work.work_id), event)


def _lost(
    signed: se.SignedEvidence, evidence: se.Evidence, statement: se.ResidentLost, world: World, stamp: dict[str, Any]
) -> Recorded:
    deployment = world.get(DeploymentState, "deployment", statement.deployment_id)
    owner = deployment.residencies[evidence.node_id].work_id if deployment is not None else evidence.work_id
    event = ResidencyChanged(
        deployment_id=statement.deployment_id, node_id=evidence.node_id, state="lost",
        generation=evidence.generation, work_id=owner, cause=f"{statement.code}: {statement.message}"[:500],
        signed=signed, code=statement.code, **stamp,
    )  # fmt: skip
    return Recorded(stream_of("deployment", statement.deployment_id), event)
