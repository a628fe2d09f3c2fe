"""The gates from files to a routable deployment. Each is passed only on what the one before it proved.

verify -> assess -> profile -> probe -> candidate (made by evidence, see `domain.evidence`) -> approval ->
deployment.
"""

from __future__ import annotations

from typing import Any

from domain.artifacts import check_location
from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.states import (
    ArtifactState,
    CandidateState,
    DeploymentState,
    NodeState,
    ProfileState,
    Residency,
    WorkState,
    stream_of,
)
from domain.goldens import refuse_goldens
from domain.leases import fail
from schemas.codes import Code
from schemas.commands import (
    Command,
    CreateDeployment,
    CreateProfile,
    GrantApproval,
    RequestAssessment,
    RequestProbe,
    RetireDeployment,
    RevokeApproval,
    VerifyArtifact,
)
from schemas.events import (
    ApprovalGranted,
    ApprovalRevoked,
    CancelRequested,
    DeploymentCreated,
    DeploymentRetired,
    ProfileCreated,
    WorkRequested,
)
from schemas.evidence import Assessed
from schemas.profiles import profile_digest
from schemas.tokens import NODES_PER_DEPLOYMENT_MAX, OPEN_WORK_PER_NODE_MAX
from schemas.work import AssessSpec, ProbeSpec, VerifySpec, WorkKind, WorkSpec


def request_verify(command: VerifyArtifact, world: World) -> Outcome:
    refused = check_location(command.location) or node_refused(command.node_id, world)
    if refused is not None:
        return refused
    if world.get(ArtifactState, "artifact", command.artifact_id) is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no artifact set {command.artifact_id}")
    return request_work(command, "verify", command.node_id, VerifySpec(command.artifact_id, command.location), world)


def request_assessment(command: RequestAssessment, world: World) -> Outcome:
    refused = node_refused(command.node_id, world) or _not_verified(command.artifact_id, command.node_id, world)
    if refused is not None:
        return refused
    spec = AssessSpec(command.artifact_id, command.adapter, command.task)
    return request_work(command, "assess", command.node_id, spec, world)


def create_profile(command: CreateProfile, world: World) -> Outcome:
    """The assessment must be compatible and for the same adapter and task. Equal settings are one profile."""
    assessment = _assessment(command.assessment_id, world)
    if isinstance(assessment, Rejected):
        return assessment
    _, spec, _ = assessment
    profile = command.profile
    if (spec.adapter, spec.task) != (profile.adapter, profile.task):
        return Rejected(
            Code.RUNTIME_INCOMPATIBLE,
            f"the assessment is for {spec.adapter}/{spec.task}, the profile for {profile.adapter}/{profile.task}",
        )
    refused = refuse_goldens(profile)
    if refused is not None:
        return refused
    profile_id = profile_digest(profile)
    result: dict[str, Any] = {"profile_id": profile_id}
    if world.get(ProfileState, "profile", profile_id) is not None:
        return Accepted(result=result)
    event = ProfileCreated(
        profile_id=profile_id, profile=profile, assessment_id=command.assessment_id, **world.stamp(command)
    )
    return Accepted([Recorded(stream_of("profile", profile_id), event)], result)


def request_probe(command: RequestProbe, world: World) -> Outcome:
    assessment = _assessment(command.assessment_id, world)
    if isinstance(assessment, Rejected):
        return assessment
    work, spec, assessed = assessment
    profile = world.get(ProfileState, "profile", command.profile_id)
    if profile is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no profile {command.profile_id}")
    refused = node_refused(work.node_id, world) or _not_verified(spec.artifact_id, work.node_id, world)
    if refused is not None:
        return refused
    if (spec.adapter, spec.task) != (profile.profile.adapter, profile.profile.task):
        return Rejected(
            Code.RUNTIME_INCOMPATIBLE,
            f"assessed for {spec.adapter}/{spec.task}, profile is for {profile.profile.adapter}/{profile.profile.task}",
        )
    node = world.get(NodeState, "node", work.node_id)
    if node is None or node.fingerprint != assessed.fingerprint:
        return Rejected(Code.ENVIRONMENT_CHANGED, f"node {work.node_id} is no longer what was assessed")
    probe = ProbeSpec(spec.artifact_id, command.profile_id, command.assessment_id, assessed.fingerprint)
    return request_work(command, "probe", work.node_id, probe, world)


def grant_approval(command: GrantApproval, world: World) -> Outcome:
    candidate = world.get(CandidateState, "candidate", command.candidate_id)
    refused = _candidate_refused(command.candidate_id, command.candidate_digest, candidate)
    if refused is not None or candidate is None:
        return refused or Rejected(Code.UNKNOWN_STREAM, f"there is no candidate {command.candidate_id}")
    result = {"candidate_id": candidate.candidate_id, "candidate_digest": candidate.digest}
    if candidate.approved_by is not None:
        return Accepted(result=result)
    event = ApprovalGranted(
        candidate_id=candidate.candidate_id, candidate_digest=candidate.digest, approver=command.actor,
        note=command.note, **world.stamp(command),
    )  # fmt: skip
    return Accepted([Recorded(stream_of("candidate", candidate.candidate_id), event)], result)


def revoke_approval(command: RevokeApproval, world: World) -> Outcome:
    """Residents stay until they are unloaded; nothing new is loaded under a revoked approval.

    So loads that wait fail, and loads that run are asked to stop.
    """
    candidate = world.get(CandidateState, "candidate", command.candidate_id)
    if candidate is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no candidate {command.candidate_id}")
    result = {"candidate_id": candidate.candidate_id}
    if candidate.approved_by is None:
        return Accepted(result=result)
    stamp = world.stamp(command)
    event = ApprovalRevoked(
        candidate_id=candidate.candidate_id, candidate_digest=candidate.digest, note=command.note, **stamp
    )
    events = [Recorded(stream_of("candidate", candidate.candidate_id), event)]
    for load in _open_loads(candidate.candidate_id, world):
        if load.lease is None:
            events += fail(load, Code.CANDIDATE_NOT_APPROVED, "the approval was revoked", stamp)
        elif not load.cancel_requested:
            asked = CancelRequested(work_id=load.work_id, reason="the approval was revoked", **stamp)
            events.append(Recorded(stream_of("work", load.work_id), asked))
    return Accepted(events, result)


def _open_loads(candidate_id: str, world: World) -> list[WorkState]:
    """Loads under way, or waiting, of any deployment of this candidate, oldest first."""
    loads = [work for work in world.fleet.open_work.values() if work.kind == "load" and work.deployment_id]
    found = []
    for load in sorted(loads, key=lambda work: (work.requested_at_ms, work.work_id)):
        deployment = world.get(DeploymentState, "deployment", load.deployment_id or "")
        if deployment is not None and deployment.candidate_id == candidate_id:
            found.append(world.get(WorkState, "work", load.work_id) or load)
    return found


def create_deployment(command: CreateDeployment, world: World) -> Outcome:
    candidate = world.get(CandidateState, "candidate", command.candidate_id)
    refused = _candidate_refused(command.candidate_id, command.candidate_digest, candidate)
    if refused is not None or candidate is None:
        return refused or Rejected(Code.UNKNOWN_STREAM, f"there is no candidate {command.candidate_id}")
    if candidate.approved_by is None:
        return Rejected(Code.CANDIDATE_NOT_APPROVED, f"nobody approved candidate {candidate.candidate_id}")
    if command.capability != candidate.task:
        return Rejected(Code.RUNTIME_INCOMPATIBLE, f"the candidate was probed for {candidate.task}")
    refused = _nodes_refused(command.node_ids, candidate, world)
    if refused is not None:
        return refused
    if command.name in world.fleet.deployment_named:
        return Rejected(Code.NAME_TAKEN, f"a deployment is named {command.name} already")
    deployment_id = world.ids.token()
    event = DeploymentCreated(
        deployment_id=deployment_id, name=command.name, candidate_id=candidate.candidate_id,
        candidate_digest=candidate.digest, artifact_id=candidate.artifact_id, profile_id=candidate.profile_id,
        fingerprint=candidate.fingerprint, capability=command.capability, node_ids=command.node_ids,
        **world.stamp(command),
    )  # fmt: skip
    return Accepted([Recorded(stream_of("deployment", deployment_id), event)], {"deployment_id": deployment_id})


def retire_deployment(command: RetireDeployment, world: World) -> Outcome:
    deployment = world.get(DeploymentState, "deployment", command.deployment_id)
    if deployment is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no deployment {command.deployment_id}")
    if deployment.retired:
        return Accepted(result={"deployment_id": deployment.deployment_id})
    for node_id in deployment.node_ids:
        state = deployment.residency(node_id)
        if state not in ("absent", "lost", "failed"):
            return Rejected(Code.RESIDENCY_CONFLICT, f"it is {state} on node {node_id}")
        if state == "failed" and _may_be_left(deployment.residencies[node_id], node_id, world):
            return Rejected(Code.RESIDENCY_CONFLICT, f"its unload failed on node {node_id}; unload it again first")
    event = DeploymentRetired(deployment_id=deployment.deployment_id, **world.stamp(command))
    return Accepted(
        [Recorded(stream_of("deployment", deployment.deployment_id), event)],
        {"deployment_id": deployment.deployment_id},
    )


def _may_be_left(failed: Residency, node_id: str, world: World) -> bool:
    """Whether an unload that failed may have left a process with the worker that still runs."""
    work, node = world.get(WorkState, "work", failed.work_id), world.get(NodeState, "node", node_id)
    if work is None or work.kind != "unload" or node is None:
        return False
    return node.session == "alive" and int(node.generation) <= failed.generation_seen


# --- what the gates share -----------------------------------------------------------------------------------


def request_work(
    command: Command, kind: WorkKind, node_id: str, spec: WorkSpec, world: World, more: list[Recorded] | None = None
) -> Accepted:
    """Open a work item; the dispatcher offers it to the node."""
    work_id = world.ids.token()
    event = WorkRequested(
        work_id=work_id, node_id=node_id, kind=kind, spec=spec, deadline_ms=world.now_ms + world.limits.queue_ms,
        **world.stamp(command),
    )  # fmt: skip
    return Accepted([Recorded(stream_of("work", work_id), event), *(more or [])], {"work_id": work_id})


def node_refused(node_id: str, world: World) -> Rejected | None:
    """None where new work may be put on the node: known, enabled, its worker's session alive, queue not full."""
    node = world.get(NodeState, "node", node_id)
    if node is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no node {node_id}")
    if not node.enabled:
        return Rejected(Code.NODE_DISABLED, f"node {node_id} is disabled")
    if node.session != "alive":
        return Rejected(Code.NODE_ABSENT, f"node {node_id} has no live worker (session: {node.session})")
    if len(world.fleet.work_of(node_id)) >= OPEN_WORK_PER_NODE_MAX:
        return Rejected(Code.NODE_FULL, f"node {node_id} has {OPEN_WORK_PER_NODE_MAX} open work items")
    return None


def _not_verified(artifact_id: str, node_id: str, world: World) -> Rejected | None:
    artifact = world.get(ArtifactState, "artifact", artifact_id)
    if artifact is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no artifact set {artifact_id}")
    if node_id not in artifact.verified:
        return Rejected(Code.ARTIFACT_NOT_VERIFIED, f"node {node_id} has not verified artifact set {artifact_id}")
    return None


def _assessment(assessment_id: str, world: World) -> tuple[WorkState, AssessSpec, Assessed] | Rejected:
    work = world.get(WorkState, "work", assessment_id)
    if work is None or not isinstance(work.spec, AssessSpec):
        return Rejected(Code.UNKNOWN_STREAM, f"there is no assessment {assessment_id}")
    if not isinstance(work.result, Assessed):
        return Rejected(Code.RUNTIME_INCOMPATIBLE, f"assessment {assessment_id} is {work.stage}, not completed")
    if not work.result.compatible:
        reasons = "; ".join(reason.message for reason in work.result.reasons)
        return Rejected(Code.RUNTIME_INCOMPATIBLE, reasons or "the assessment found it incompatible")
    return work, work.spec, work.result


def _candidate_refused(candidate_id: str, digest: str, candidate: CandidateState | None) -> Rejected | None:
    if candidate is None:
        return Rejected(Code.UNKNOWN_STREAM, f"there is no candidate {candidate_id}")
    if digest != candidate.digest:
        return Rejected(
            Code.APPROVAL_MISMATCH,
            f"candidate {candidate_id} has digest {candidate.digest}, not {digest}",
            {"expected": candidate.digest, "given": digest},
        )
    return None


def _nodes_refused(node_ids: list[str], candidate: CandidateState, world: World) -> Rejected | None:
    if not node_ids or len(node_ids) > NODES_PER_DEPLOYMENT_MAX or len(set(node_ids)) != len(node_ids):
        return Rejected(Code.COMMAND_MALFORMED, f"name 1 to {NODES_PER_DEPLOYMENT_MAX} different nodes")
    for node_id in node_ids:
        node = world.get(NodeState, "node", node_id)
        if node is None:
            return Rejected(Code.UNKNOWN_STREAM, f"there is no node {node_id}")
        if not node.enabled:
            return Rejected(Code.NODE_DISABLED, f"node {node_id} is disabled")
        if node.fingerprint != candidate.fingerprint:
            return Rejected(Code.ENVIRONMENT_CHANGED, f"node {node_id} does not run what the candidate was probed on")
        refused = _not_verified(candidate.artifact_id, node_id, world)
        if refused is not None:
            return refused
    return None
