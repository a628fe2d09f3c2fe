"""Commands: what can be asked of the control plane. Imperative, decoded strictly.

Every command carries `command_id` (chosen by the sender; sending the same command again gets the first
outcome) and `actor`. `BY_SUBJECT` is the closed table from `<noun>.<verb>` to the struct; commands in
`RPC_ONLY` are refused on the durable stream because they carry or return a secret. Structs below
`INTERNAL` are issued by the control plane itself when time passes; they have no subject.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.artifacts import FileEntry
from schemas.devices import DEVICES_MAX, DeviceReading
from schemas.environments import RuntimeEnvironment
from schemas.evidence import SignedEvidence
from schemas.live import InventoryEntry
from schemas.profiles import Adapter, RuntimeProfile, Task
from schemas.tokens import Actor, Digest, Generation, Name, Text, Token


class Command(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    command_id: Token
    actor: Actor
    traceparent: Annotated[str, Meta(max_length=64)] | None = None


class RegisterArtifact(Command, frozen=True, kw_only=True):
    """Record an ArtifactSet. Its id is the digest of the manifest; registering it again changes nothing."""

    name: Name
    files: list[FileEntry]


class VerifyArtifact(Command, frozen=True, kw_only=True):
    """Have a node hash every file of the set at `location` (relative to the node's artifact root)."""

    artifact_id: Digest
    node_id: Token
    location: Annotated[str, Meta(min_length=1, max_length=400)]


class RequestAssessment(Command, frozen=True, kw_only=True):
    """Have a node inspect the set statically for one adapter and task."""

    artifact_id: Digest
    node_id: Token
    adapter: Adapter
    task: Task


class CreateProfile(Command, frozen=True, kw_only=True):
    """Record a RuntimeProfile, on the ground of a compatible assessment."""

    assessment_id: Token
    profile: RuntimeProfile


class RequestProbe(Command, frozen=True, kw_only=True):
    """Have the node of the assessment load, check, measure and unload the set under the profile."""

    assessment_id: Token
    profile_id: Digest


class CancelWork(Command, frozen=True, kw_only=True):
    work_id: Token
    reason: Text = ""


class GrantApproval(Command, frozen=True, kw_only=True):
    """ProductionApproval of one candidate, by its exact digest. `actor` is the approver."""

    candidate_id: Token
    candidate_digest: Digest
    note: Text = ""


class RevokeApproval(Command, frozen=True, kw_only=True):
    candidate_id: Token
    note: Text = ""


class CreateDeployment(Command, frozen=True, kw_only=True):
    """Bind an approved candidate to a capability under a name, on nodes with the candidate's environment."""

    name: Name
    candidate_id: Token
    candidate_digest: Digest
    capability: Task
    node_ids: list[Token]


class RetireDeployment(Command, frozen=True, kw_only=True):
    """Take a deployment out of use. Refused while it is resident anywhere."""

    deployment_id: Token


class RequestJob(Command, frozen=True, kw_only=True):
    """A ServingJob: load, health, drain or unload of one deployment on one of its nodes."""

    deployment_id: Token
    node_id: Token
    verb: Literal["load", "health", "drain", "unload"]


class CloseCircuit(Command, frozen=True, kw_only=True):
    """Let a deployment be loaded again on a node where it ended by itself too often, and forget those ends."""

    deployment_id: Token
    node_id: Token


class EnrolNode(Command, frozen=True, kw_only=True):
    """Make a node known. `credential_sha256` is the SHA-256 (hex) of the secret its worker will show."""

    node_id: Token
    credential_sha256: Digest


class DisableNode(Command, frozen=True, kw_only=True):
    """Take a node out: open work fails, residencies on it are lost, leases end, all in one transaction."""

    node_id: Token
    reason: Text = ""


class EnableNode(Command, frozen=True, kw_only=True):
    node_id: Token


class RegisterWorker(Command, frozen=True, kw_only=True):
    """A worker process starts. It gets a new generation, which fences every older one of the node."""

    node_id: Token
    credential: Annotated[str, Meta(min_length=16, max_length=256)]
    boot_id: Token
    environment: RuntimeEnvironment
    capabilities: dict[Adapter, list[Task]]
    session_public_key: Annotated[str, Meta(max_length=64, description="Ed25519 public key, raw, base64.")]
    artifact_root: Annotated[str, Meta(max_length=400)]
    inventory: list[InventoryEntry]


class LeaveWorker(Command, frozen=True, kw_only=True):
    """A worker stops in good order: its session ends now and not at the end of its term."""

    node_id: Token
    generation: Generation
    credential: Annotated[str, Meta(min_length=16, max_length=256)]


class ClaimLease(Command, frozen=True, kw_only=True):
    """Ask for the lease of one work item.

    `devices` is what the worker measured just before. Work that needs device memory is granted on this only: where
    it is not enough, the work has failed, and the accepted reply says `refused` and why in place of a WorkOrder.
    """

    work_id: Token
    node_id: Token
    generation: Generation
    devices: Annotated[list[DeviceReading], Meta(max_length=DEVICES_MAX)] = []


class RenewLease(Command, frozen=True, kw_only=True):
    work_id: Token
    generation: Generation
    attempt: int
    token: Annotated[str, Meta(max_length=128)]


class ReleaseLease(Command, frozen=True, kw_only=True):
    """Give work back unfinished; it is offered again."""

    work_id: Token
    generation: Generation
    attempt: int
    token: Annotated[str, Meta(max_length=128)]
    reason: Text = ""


# INTERNAL: no subject; the control plane issues these, the log decides them.


class SubmitEvidence(Command, frozen=True, kw_only=True):
    """Evidence that arrived on the bus. `command_id` is its evidence id; the signature was checked by the caller."""

    signed: SignedEvidence
    signature_valid: bool


class ExpireLease(Command, frozen=True, kw_only=True):
    work_id: Token
    attempt: int


class PassDeadline(Command, frozen=True, kw_only=True):
    work_id: Token


class LoseSession(Command, frozen=True, kw_only=True):
    node_id: Token
    generation: Generation
    silent_ms: int


class ReconcileInventory(Command, frozen=True, kw_only=True):
    """What the node's worker said it holds, where that is not what the log says."""

    node_id: Token
    generation: Generation
    inventory: list[InventoryEntry]


BY_SUBJECT: dict[str, type[Command]] = {
    "artifact.register": RegisterArtifact,
    "artifact.verify": VerifyArtifact,
    "assessment.request": RequestAssessment,
    "profile.create": CreateProfile,
    "probe.request": RequestProbe,
    "work.cancel": CancelWork,
    "approval.grant": GrantApproval,
    "approval.revoke": RevokeApproval,
    "deployment.create": CreateDeployment,
    "deployment.retire": RetireDeployment,
    "job.request": RequestJob,
    "node.enrol": EnrolNode,
    "node.disable": DisableNode,
    "node.enable": EnableNode,
    "worker.register": RegisterWorker,
    "worker.leave": LeaveWorker,
    "lease.claim": ClaimLease,
    "lease.renew": RenewLease,
    "lease.release": ReleaseLease,
    "circuit.close": CloseCircuit,
}
RPC_ONLY = frozenset({"worker.register", "worker.leave", "lease.claim", "lease.renew", "lease.release"})
