"""Which rows a stream's state stands for, and which of them an event made new.

`position` is the event's. A row is written whole; the last one of a batch for an id wins.
"""

from __future__ import annotations

from typing import Any

import msgspec

from domain.folding.states import (
    ArtifactState,
    CandidateState,
    DeploymentState,
    NodeState,
    ProfileState,
    State,
    WorkState,
)
from projections.rows import (
    ArtifactRow,
    CandidateRow,
    DeploymentRow,
    NodeRow,
    ProfileRow,
    ResidencyRow,
    Row,
    WorkRow,
)
from schemas.work import AssessSpec, JobSpec, ProbeSpec

Rows = dict[tuple[str, str], Row]  # by (table, id)


def project(before: State | None, after: State, position: int, rows: Rows) -> None:
    """Put the rows that differ between two states of one stream into `rows`."""
    match after:
        case WorkState():
            row: Row = work_row(after, position)
            table = "work"
        case NodeState():
            row, table = node_row(after, position), "node"
        case ArtifactState():
            row, table = artifact_row(after, position), "artifact"
        case ProfileState():
            row, table = profile_row(after, position), "profile"
        case CandidateState():
            row, table = candidate_row(after, position), "candidate"
        case DeploymentState():
            row, table = deployment_row(after, position), "deployment"
            _residencies(before, after, position, rows)
    rows[table, row.id] = row


def _residencies(before: State | None, after: DeploymentState, position: int, rows: Rows) -> None:
    known = before if isinstance(before, DeploymentState) else None
    for node_id, held in after.residencies.items():
        circuit = after.circuits.get(node_id)
        same = known is not None and known.residencies.get(node_id) is held
        if same and known is not None and known.circuits.get(node_id) is circuit:
            continue
        is_open = circuit is not None and circuit.until_ms is not None
        ident = f"{after.deployment_id}.{node_id}"
        rows["residency", ident] = ResidencyRow(
            id=ident, position=position, deployment_id=after.deployment_id, node_id=node_id, state=held.state,
            generation=held.generation, work_id=held.work_id, cause=held.cause, changed_at_ms=held.changed_at_ms,
            circuit_until_ms=circuit.until_ms if circuit is not None else None,
            circuit_cause=circuit.message if circuit is not None and is_open else None,
            circuit_openings=circuit.openings if circuit is not None and is_open else None,
            reserved_bytes=held.reserved.needed_bytes if held.reserved is not None else None,
            reserved_device=held.reserved.device_index if held.reserved is not None else None,
        )  # fmt: skip


def artifact_row(s: ArtifactState, position: int) -> ArtifactRow:
    return ArtifactRow(
        id=s.artifact_id, position=position, name=s.name, files=len(s.files), bytes=s.bytes, verified=s.verified,
        registered_at_ms=s.registered_at_ms,
    )  # fmt: skip


def profile_row(s: ProfileState, position: int) -> ProfileRow:
    return ProfileRow(
        id=s.profile_id, position=position, adapter=s.profile.adapter, task=s.profile.task,
        assessment_id=s.assessment_id, profile=_plain(s.profile), created_at_ms=s.created_at_ms,
    )  # fmt: skip


def node_row(s: NodeState, position: int) -> NodeRow:
    return NodeRow(
        id=s.node_id, position=position, enabled=s.enabled, session=s.session, generation=s.generation,
        boot_id=s.boot_id, fingerprint=s.fingerprint, artifact_root=s.artifact_root, capabilities=s.capabilities,
        environment=_plain(s.environment) if s.environment is not None else {}, changed_at_ms=s.changed_at_ms,
    )  # fmt: skip


def work_row(s: WorkState, position: int) -> WorkRow:
    spec = s.spec
    reserved = s.reserved if s.lease is not None else None  # it ends with the lease
    return WorkRow(
        id=s.work_id, position=position, kind=s.kind, node_id=s.node_id, stage=s.stage, attempt=s.attempt,
        generation=s.generation, lease_until_ms=s.lease.until_ms if s.lease is not None else None,
        artifact_id=spec.artifact_id, profile_id=spec.profile_id if isinstance(spec, ProbeSpec | JobSpec) else None,
        deployment_id=s.deployment_id, adapter=spec.adapter if isinstance(spec, AssessSpec) else None,
        cancel_requested=s.cancel_requested, code=str(s.code) if s.code is not None else None, message=s.message,
        result=_plain(s.result) if s.result is not None else {}, rejected_evidence=s.rejected_evidence,
        requested_at_ms=s.requested_at_ms, deadline_ms=s.deadline_ms, ended_at_ms=s.ended_at_ms,
        reserved_bytes=reserved.needed_bytes if reserved is not None else None,
        reserved_device=reserved.device_index if reserved is not None else None,
    )  # fmt: skip


def candidate_row(s: CandidateState, position: int) -> CandidateRow:
    return CandidateRow(
        id=s.candidate_id, position=position, digest=s.digest, artifact_id=s.artifact_id, profile_id=s.profile_id,
        fingerprint=s.fingerprint, node_id=s.node_id, probe_id=s.candidate_id, adapter=s.adapter, task=s.task,
        status="lab_ready", production=False, approved_by=s.approved_by, approved_at_ms=s.approved_at_ms,
        created_at_ms=s.created_at_ms,
    )  # fmt: skip


def deployment_row(s: DeploymentState, position: int) -> DeploymentRow:
    return DeploymentRow(
        id=s.deployment_id, position=position, name=s.name, candidate_id=s.candidate_id,
        candidate_digest=s.candidate_digest, artifact_id=s.artifact_id, profile_id=s.profile_id,
        fingerprint=s.fingerprint, capability=s.capability, node_ids=s.node_ids, retired=s.retired,
        created_at_ms=s.created_at_ms,
    )  # fmt: skip


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain
