"""Events: what happened. Past tense, never edited.

`TOPICS` is the closed table from topic to struct; a topic outside it is a refusal to read on, never an
import. A changed event is a new struct under `.v2` with an upcaster; golden histories in the tests hold
us to that. `signed` is the evidence that caused the event, whole.

Streams are named `<noun>-<id>`; `STREAM_NOUNS` lists the nouns.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.devices import Reservation
from schemas.environments import RuntimeEnvironment
from schemas.evidence import SignedEvidence, Statement
from schemas.live import InventoryEntry
from schemas.profiles import Adapter, RuntimeProfile, Task
from schemas.tokens import ByteCount, Digest, Generation, Milliseconds, Token
from schemas.work import Stage, WorkKind, WorkSpec

STREAM_NOUNS = ("artifact", "profile", "node", "work", "candidate", "deployment")
ResidencyState = Literal["absent", "loading", "resident", "draining", "unloading", "lost", "failed"]


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """`at_ms` is the control plane's clock when it decided; `command_id` the command that caused it."""

    at_ms: Milliseconds
    command_id: str
    actor: str
    traceparent: str | None = None


class ArtifactRegistered(Event, frozen=True, kw_only=True):
    artifact_id: Digest
    name: str
    files: list[FileEntry]
    bytes: ByteCount


class ArtifactVerified(Event, frozen=True, kw_only=True):
    artifact_id: Digest
    node_id: Token
    location: str
    work_id: Token


class ProfileCreated(Event, frozen=True, kw_only=True):
    profile_id: Digest
    profile: RuntimeProfile
    assessment_id: Token


class NodeEnrolled(Event, frozen=True, kw_only=True):
    node_id: Token
    credential_sha256: Digest


class NodeDisabled(Event, frozen=True, kw_only=True):
    node_id: Token
    reason: str


class NodeEnabled(Event, frozen=True, kw_only=True):
    node_id: Token


class WorkerRegistered(Event, frozen=True, kw_only=True):
    node_id: Token
    generation: Generation
    boot_id: Token
    environment: RuntimeEnvironment
    fingerprint: Digest
    capabilities: dict[Adapter, list[Task]]
    session_public_key: str
    artifact_root: str
    inventory: list[InventoryEntry]


class SessionLost(Event, frozen=True, kw_only=True):
    """The term of this generation is over: `WORKER_LOST` for silence, `left` for a worker that said goodbye.

    A generation never comes back; a worker that finds its session lost registers anew.
    """

    node_id: Token
    generation: Generation
    cause: str
    silent_ms: int


class WorkRequested(Event, frozen=True, kw_only=True):
    work_id: Token
    node_id: Token
    kind: WorkKind
    spec: WorkSpec
    deadline_ms: Milliseconds


class LeaseGranted(Event, frozen=True, kw_only=True):
    """`reserved` is the device memory that is kept for this work while it is leased, with the numbers it rests on."""

    work_id: Token
    node_id: Token
    generation: Generation
    attempt: int
    token_sha256: Digest
    until_ms: Milliseconds
    deadline_ms: Milliseconds
    reserved: Reservation | None = None


class LeaseRenewed(Event, frozen=True, kw_only=True):
    work_id: Token
    generation: Generation
    attempt: int
    until_ms: Milliseconds


class LeaseEnded(Event, frozen=True, kw_only=True):
    """The lease is over without a result: released, expired, revoked by a newer generation, or the node lost.

    `again` tells whether the work is queued for another attempt, `deadline_ms` until when it may wait for that.
    """

    work_id: Token
    generation: Generation
    attempt: int
    cause: Code
    detail: str
    again: bool
    deadline_ms: Milliseconds | None = None


class WorkProgressed(Event, frozen=True, kw_only=True):
    work_id: Token
    generation: Generation
    attempt: int
    stage: Stage
    signed: SignedEvidence


class WorkCompleted(Event, frozen=True, kw_only=True):
    """`result` repeats the statement inside `signed`, decoded; `audit verify` checks that they agree."""

    work_id: Token
    generation: Generation
    attempt: int
    result: Statement
    signed: SignedEvidence


class WorkFailed(Event, frozen=True, kw_only=True):
    """By the worker's evidence (`signed`), or by the control plane (deadline, attempts, node), without any."""

    work_id: Token
    generation: Generation
    attempt: int
    code: Code
    message: str
    signed: SignedEvidence | None = None


class CancelRequested(Event, frozen=True, kw_only=True):
    work_id: Token
    reason: str


class WorkCancelled(Event, frozen=True, kw_only=True):
    work_id: Token
    generation: Generation
    attempt: int
    signed: SignedEvidence | None = None


class EvidenceRejected(Event, frozen=True, kw_only=True):
    """Evidence that may not count, kept whole with the reason. Changes no state."""

    work_id: Token
    generation: Generation
    attempt: int
    reason: Code
    message: str
    signed: SignedEvidence


class CandidateCreated(Event, frozen=True, kw_only=True, omit_defaults=False):
    """`candidate_digest` binds the ArtifactSet, the profile, the environment and the probe's evidence."""

    candidate_id: Token
    candidate_digest: Digest
    artifact_id: Digest
    profile_id: Digest
    fingerprint: Digest
    node_id: Token
    probe_id: Token
    evidence_sha256: Digest
    adapter: Adapter
    task: Task
    status: Literal["lab_ready"] = "lab_ready"
    production: Literal[False] = False


class ApprovalGranted(Event, frozen=True, kw_only=True):
    candidate_id: Token
    candidate_digest: Digest
    approver: str
    note: str


class ApprovalRevoked(Event, frozen=True, kw_only=True):
    candidate_id: Token
    candidate_digest: Digest
    note: str


class DeploymentCreated(Event, frozen=True, kw_only=True):
    deployment_id: Token
    name: str
    candidate_id: Token
    candidate_digest: Digest
    artifact_id: Digest
    profile_id: Digest
    fingerprint: Digest
    capability: Task
    node_ids: list[Token]


class DeploymentRetired(Event, frozen=True, kw_only=True):
    deployment_id: Token


class ResidencyChanged(Event, frozen=True, kw_only=True):
    """What the log knows of one deployment on one node. `work_id` owns the transition.

    `generation` is the worker that holds it, "0" where none does. `signed` is there where a worker's word that
    its child died caused the change; otherwise the work item's own events hold the evidence. `code` says why a
    load or unload failed, or why the child ended unasked. `reserved` is the device memory that a resident keeps.
    """

    deployment_id: Token
    node_id: Token
    state: ResidencyState
    generation: Generation
    work_id: Token
    cause: str
    signed: SignedEvidence | None = None
    code: Code | None = None
    reserved: Reservation | None = None


class CircuitOpened(Event, frozen=True, kw_only=True):
    """The deployment ended by itself too often on this node: no load there before `until_ms`.

    `cause` is the last end's code, `message` how it was told. `ends` counts the ends that led to this, `openings`
    how often the circuit opened in a row, which is what doubles the time.
    """

    deployment_id: Token
    node_id: Token
    cause: Code
    message: str
    ends: int
    openings: int
    until_ms: Milliseconds


class CircuitClosed(Event, frozen=True, kw_only=True):
    """Loads are taken again: a load after the time had passed succeeded, or a person closed it."""

    deployment_id: Token
    node_id: Token
    by: Literal["load", "person"]


TOPICS: dict[str, type[Event]] = {
    "artifact.registered.v1": ArtifactRegistered,
    "artifact.verified.v1": ArtifactVerified,
    "profile.created.v1": ProfileCreated,
    "node.enrolled.v1": NodeEnrolled,
    "node.disabled.v1": NodeDisabled,
    "node.enabled.v1": NodeEnabled,
    "worker.registered.v1": WorkerRegistered,
    "session.lost.v1": SessionLost,
    "work.requested.v1": WorkRequested,
    "lease.granted.v1": LeaseGranted,
    "lease.renewed.v1": LeaseRenewed,
    "lease.ended.v1": LeaseEnded,
    "work.progressed.v1": WorkProgressed,
    "work.completed.v1": WorkCompleted,
    "work.failed.v1": WorkFailed,
    "work.cancel_requested.v1": CancelRequested,
    "work.cancelled.v1": WorkCancelled,
    "evidence.rejected.v1": EvidenceRejected,
    "candidate.created.v1": CandidateCreated,
    "approval.granted.v1": ApprovalGranted,
    "approval.revoked.v1": ApprovalRevoked,
    "deployment.created.v1": DeploymentCreated,
    "deployment.retired.v1": DeploymentRetired,
    "residency.changed.v1": ResidencyChanged,
    "circuit.opened.v1": CircuitOpened,
    "circuit.closed.v1": CircuitClosed,
}
TOPIC_OF: dict[type[Event], str] = {struct: topic for topic, struct in TOPICS.items()}

_encode = msgspec.json.Encoder().encode
_decoders = {topic: msgspec.json.Decoder(struct).decode for topic, struct in TOPICS.items()}


class UnknownTopic(LookupError):
    """The log holds a topic this version does not know. Upgrade before reading on; nothing was skipped."""


def encode_event(event: Event) -> bytes:
    return _encode(event)


def decode_event(topic: str, state: bytes) -> Event:
    """The event struct behind one log row. Raises UnknownTopic, or msgspec.DecodeError for damaged bytes."""
    decode = _decoders.get(topic)
    if decode is None:
        raise UnknownTopic(topic)
    return decode(state)
