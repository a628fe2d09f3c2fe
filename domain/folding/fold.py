"""`fold(state, event) -> (state, reason)`: the meaning of the log.

An event that may not count (a stale word of a dead generation that got into the log some other way, a
second beginning, a step that cannot follow) leaves the state as it was and is returned with its reason,
for the auditor's list. Folding never raises on a well-formed event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from domain import circuits
from domain.folding.fencing import fence_circuit, fence_grant, fence_residency, fence_session, fence_work
from domain.folding.states import (
    ArtifactState,
    CandidateState,
    Circuit,
    DeploymentState,
    Lease,
    NodeState,
    ProfileState,
    Residency,
    State,
    WorkState,
)
from schemas import events as ev
from schemas.codes import Code
from schemas.work import RUNNING_STAGES

Folded = tuple[State | None, Code | None]
_HOLDING_MEMORY = frozenset({"resident", "draining", "unloading"})


def fold(state: State | None, event: ev.Event) -> Folded:
    """The state after `event`, and why the event did not count (None where it did)."""
    kind = type(event)
    begin = _BEGIN.get(kind)
    if begin is not None:
        if state is not None:
            return state, Code.CONFLICT
        return begin(event), None
    step = _STEP[kind]
    if type(state) not in step[0]:
        return state, Code.UNKNOWN_STREAM
    return step[1](state, event)


def evidence_digest(payload: str) -> str:
    """SHA-256 (hex) of the signed text, by which a candidate names its evidence."""
    return hashlib.sha256(payload.encode()).hexdigest()


# --- beginnings ---------------------------------------------------------------------------------------------


def _artifact(e: ev.ArtifactRegistered) -> ArtifactState:
    return ArtifactState(e.artifact_id, e.name, e.files, e.bytes, e.at_ms)


def _profile(e: ev.ProfileCreated) -> ProfileState:
    return ProfileState(e.profile_id, e.profile, e.assessment_id, e.at_ms)


def _node(e: ev.NodeEnrolled) -> NodeState:
    return NodeState(e.node_id, e.credential_sha256, e.at_ms)


def _work(e: ev.WorkRequested) -> WorkState:
    return WorkState(e.work_id, e.node_id, e.kind, e.spec, e.at_ms, e.deadline_ms)


def _candidate(e: ev.CandidateCreated) -> CandidateState:
    return CandidateState(
        e.candidate_id, e.candidate_digest, e.artifact_id, e.profile_id, e.fingerprint, e.node_id, e.adapter, e.task,
        e.at_ms,
    )  # fmt: skip


def _deployment(e: ev.DeploymentCreated) -> DeploymentState:
    return DeploymentState(
        e.deployment_id, e.name, e.candidate_id, e.candidate_digest, e.artifact_id, e.profile_id, e.fingerprint,
        e.capability, e.node_ids, e.at_ms,
    )  # fmt: skip


# --- steps --------------------------------------------------------------------------------------------------


def _verified(s: ArtifactState, e: ev.ArtifactVerified) -> Folded:
    return replace(s, verified={**s.verified, e.node_id: e.location}), None


def _disabled(s: NodeState, e: ev.NodeDisabled) -> Folded:
    session = "lost" if s.session == "alive" else s.session
    return replace(s, enabled=False, session=session, changed_at_ms=e.at_ms), None


def _enabled(s: NodeState, e: ev.NodeEnabled) -> Folded:
    return replace(s, enabled=True, changed_at_ms=e.at_ms), None


def _registered(s: NodeState, e: ev.WorkerRegistered) -> Folded:
    if int(e.generation) <= int(s.generation):
        return s, Code.GENERATION_FENCED
    return replace(
        s, session="alive", generation=e.generation, boot_id=e.boot_id, environment=e.environment,
        fingerprint=e.fingerprint, capabilities=e.capabilities, artifact_root=e.artifact_root,
        session_keys={**s.session_keys, e.generation: e.session_public_key}, changed_at_ms=e.at_ms,
    ), None  # fmt: skip


def _session_lost(s: NodeState, e: ev.SessionLost) -> Folded:
    reason = fence_session(s, e.generation)
    if reason is not None:
        return s, reason
    return replace(s, session="left" if e.cause == "left" else "lost", changed_at_ms=e.at_ms), None


def _granted(s: WorkState, e: ev.LeaseGranted) -> Folded:
    reason = fence_grant(s, e.generation, e.attempt)
    if reason is not None:
        return s, reason
    lease = Lease(e.generation, e.attempt, e.token_sha256, e.at_ms, e.until_ms)
    return replace(
        s, lease=lease, attempt=e.attempt, generation=e.generation, stage="preparing", deadline_ms=e.deadline_ms,
        reserved=e.reserved,
    ), None  # fmt: skip


def _renewed(s: WorkState, e: ev.LeaseRenewed) -> Folded:
    reason = fence_work(s, e.generation, e.attempt, e.at_ms)
    if reason is not None or s.lease is None:
        return s, reason
    return replace(s, lease=replace(s.lease, since_ms=e.at_ms, until_ms=e.until_ms)), None


def _lease_ended(s: WorkState, e: ev.LeaseEnded) -> Folded:
    lease = s.lease
    if lease is None or (e.generation, e.attempt) != (lease.generation, lease.attempt):
        return s, Code.LEASE_ENDED
    deadline_ms = s.deadline_ms if e.deadline_ms is None else e.deadline_ms
    return replace(s, lease=None, stage="queued", deadline_ms=deadline_ms), None


def _progressed(s: WorkState, e: ev.WorkProgressed) -> Folded:
    if e.stage not in RUNNING_STAGES:  # progress neither ends work nor puts it back
        return s, Code.EVIDENCE_MISPLACED
    reason = fence_work(s, e.generation, e.attempt, e.at_ms)
    return (s, reason) if reason is not None else (replace(s, stage=e.stage), None)


def _completed(s: WorkState, e: ev.WorkCompleted) -> Folded:
    reason = fence_work(s, e.generation, e.attempt, e.at_ms)
    if reason is not None:
        return s, reason
    return replace(
        s, lease=None, stage="completed", result=e.result, evidence_sha256=evidence_digest(e.signed.payload),
        ended_at_ms=e.at_ms,
    ), None  # fmt: skip


def _failed(s: WorkState, e: ev.WorkFailed) -> Folded:
    reason = _fence_end(s, e)
    if reason is not None:
        return s, reason
    return replace(s, lease=None, stage="failed", code=e.code, message=e.message, ended_at_ms=e.at_ms), None


def _cancelled(s: WorkState, e: ev.WorkCancelled) -> Folded:
    reason = _fence_end(s, e)
    if reason is not None:
        return s, reason
    return replace(s, lease=None, stage="cancelled", code=Code.WORK_CANCELLED, ended_at_ms=e.at_ms), None


def _fence_end(s: WorkState, e: ev.WorkFailed | ev.WorkCancelled) -> Code | None:
    """The holder's word needs the lease; the control plane's own (no evidence) only that work is open."""
    if e.signed is not None:
        return fence_work(s, e.generation, e.attempt, e.at_ms)
    return Code.WORK_ENDED if s.ended else None


def _cancel_requested(s: WorkState, e: ev.CancelRequested) -> Folded:
    return (s, Code.WORK_ENDED) if s.ended else (replace(s, cancel_requested=True), None)


def _rejected(s: WorkState | NodeState, e: ev.EvidenceRejected) -> Folded:
    if isinstance(s, WorkState):
        return replace(s, rejected_evidence=s.rejected_evidence + 1), None
    return s, None


def _approved(s: CandidateState, e: ev.ApprovalGranted) -> Folded:
    if e.candidate_digest != s.digest:
        return s, Code.APPROVAL_MISMATCH
    return replace(s, approved_by=e.approver, approved_at_ms=e.at_ms), None


def _approval_revoked(s: CandidateState, e: ev.ApprovalRevoked) -> Folded:
    return replace(s, approved_by=None, approved_at_ms=None), None


def _retired(s: DeploymentState, e: ev.DeploymentRetired) -> Folded:
    return replace(s, retired=True), None


def _residency(s: DeploymentState, e: ev.ResidencyChanged) -> Folded:
    reason = fence_residency(s, e.node_id, e.state, e.generation, e.work_id)
    if reason is not None:
        return s, reason
    held = s.residencies.get(e.node_id)
    seen = max(int(e.generation), held.generation_seen if held else 0)
    was = held.state if held else "absent"
    kept = held.reserved if held and e.state in _HOLDING_MEMORY else None
    residency = Residency(
        e.state, e.generation, e.work_id, e.cause, e.at_ms, seen,
        before=was if e.state == "unloading" else "absent", reserved=e.reserved or kept,
    )  # fmt: skip
    after = replace(s, residencies={**s.residencies, e.node_id: residency})
    if circuits.is_crash(was, e.state, e.code) and e.code is not None:
        return _with_circuit(after, e.node_id, circuits.ended(s.circuits.get(e.node_id), e.at_ms, e.code)), None
    return after, None


def _with_circuit(s: DeploymentState, node_id: str, circuit: Circuit) -> DeploymentState:
    return replace(s, circuits={**s.circuits, node_id: circuit})


def _circuit_opened(s: DeploymentState, e: ev.CircuitOpened) -> Folded:
    reason = fence_circuit(s, e.node_id)
    if reason is not None:
        return s, reason
    known = s.circuits.get(e.node_id) or Circuit()
    circuit = replace(known, openings=e.openings, until_ms=e.until_ms, cause=e.cause, message=e.message)
    return _with_circuit(s, e.node_id, circuit), None


def _circuit_closed(s: DeploymentState, e: ev.CircuitClosed) -> Folded:
    known = s.circuits.get(e.node_id)
    reason = fence_circuit(s, e.node_id)
    if reason is not None or known is None or known.until_ms is None:
        return s, reason or Code.CONFLICT
    closed = Circuit() if e.by == "person" else replace(known, until_ms=None, closed_at_ms=e.at_ms)
    return _with_circuit(s, e.node_id, closed), None


_BEGIN: dict[type[ev.Event], Callable[[Any], State]] = {
    ev.ArtifactRegistered: _artifact,
    ev.ProfileCreated: _profile,
    ev.NodeEnrolled: _node,
    ev.WorkRequested: _work,
    ev.CandidateCreated: _candidate,
    ev.DeploymentCreated: _deployment,
}
_STEP: dict[type[ev.Event], tuple[tuple[type[State], ...], Callable[[Any, Any], Folded]]] = {
    ev.ArtifactVerified: ((ArtifactState,), _verified),
    ev.NodeDisabled: ((NodeState,), _disabled),
    ev.NodeEnabled: ((NodeState,), _enabled),
    ev.WorkerRegistered: ((NodeState,), _registered),
    ev.SessionLost: ((NodeState,), _session_lost),
    ev.LeaseGranted: ((WorkState,), _granted),
    ev.LeaseRenewed: ((WorkState,), _renewed),
    ev.LeaseEnded: ((WorkState,), _lease_ended),
    ev.WorkProgressed: ((WorkState,), _progressed),
    ev.WorkCompleted: ((WorkState,), _completed),
    ev.WorkFailed: ((WorkState,), _failed),
    ev.CancelRequested: ((WorkState,), _cancel_requested),
    ev.WorkCancelled: ((WorkState,), _cancelled),
    ev.EvidenceRejected: ((WorkState, NodeState), _rejected),
    ev.ApprovalGranted: ((CandidateState,), _approved),
    ev.ApprovalRevoked: ((CandidateState,), _approval_revoked),
    ev.DeploymentRetired: ((DeploymentState,), _retired),
    ev.ResidencyChanged: ((DeploymentState,), _residency),
    ev.CircuitOpened: ((DeploymentState,), _circuit_opened),
    ev.CircuitClosed: ((DeploymentState,), _circuit_closed),
}
if set(_BEGIN) | set(_STEP) != set(ev.TOPICS.values()):
    raise RuntimeError("every topic needs a meaning in domain.folding.fold")
