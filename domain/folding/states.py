"""The folded state of each kind of stream. Immutable; `domain.folding.fold` makes the next from an event.

`gc=False`: none of these can be part of a cycle, and a writer holds hundreds of thousands of them, which
the collector would otherwise walk again and again.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.devices import Reservation
from schemas.environments import RuntimeEnvironment
from schemas.evidence import Statement
from schemas.profiles import RuntimeProfile
from schemas.work import FINAL_STAGES, JobSpec, Stage, WorkKind, WorkSpec


class ArtifactState(Struct, frozen=True, gc=False):
    artifact_id: str
    name: str
    files: list[FileEntry]
    bytes: int
    registered_at_ms: int
    verified: dict[str, str] = field(default_factory=dict)  # node -> location


class ProfileState(Struct, frozen=True, gc=False):
    profile_id: str
    profile: RuntimeProfile
    assessment_id: str
    created_at_ms: int


class NodeState(Struct, frozen=True, gc=False):
    """`session` is none, alive, lost or left; it belongs to `generation`, the newest there has been."""

    node_id: str
    credential_sha256: str
    changed_at_ms: int
    enabled: bool = True
    session: str = "none"
    generation: str = "0"
    boot_id: str | None = None
    environment: RuntimeEnvironment | None = None
    fingerprint: str | None = None
    capabilities: dict[str, list[str]] = field(default_factory=dict)
    artifact_root: str | None = None
    session_keys: dict[str, str] = field(default_factory=dict)  # generation -> public key


class Lease(Struct, frozen=True, gc=False):
    generation: str
    attempt: int
    token_sha256: str
    since_ms: int
    until_ms: int


class WorkState(Struct, frozen=True, gc=False):
    """A work item. At most one lease; `attempt` counts grants; final stages are never left.

    `reserved` is what the newest grant reserved; it is held for as long as that lease is.
    """

    work_id: str
    node_id: str
    kind: WorkKind
    spec: WorkSpec
    requested_at_ms: int
    deadline_ms: int
    stage: Stage = "queued"
    attempt: int = 0
    lease: Lease | None = None
    generation: str = "0"
    cancel_requested: bool = False
    code: Code | None = None
    message: str = ""
    result: Statement | None = None
    evidence_sha256: str | None = None
    rejected_evidence: int = 0
    ended_at_ms: int | None = None
    reserved: Reservation | None = None

    @property
    def ended(self) -> bool:
        return self.stage in FINAL_STAGES

    @property
    def deployment_id(self) -> str | None:
        return self.spec.deployment_id if isinstance(self.spec, JobSpec) else None


class CandidateState(Struct, frozen=True, gc=False):
    candidate_id: str
    digest: str
    artifact_id: str
    profile_id: str
    fingerprint: str
    node_id: str
    adapter: str
    task: str
    created_at_ms: int
    approved_by: str | None = None
    approved_at_ms: int | None = None


class Residency(Struct, frozen=True, gc=False):
    """The log's word on one deployment on one node. `generation_seen` only grows: older ones are fenced.

    `before` is the state that a running unload began from, to which one that did not begin goes back. `reserved` is
    device memory, held for as long as a process may hold it.
    """

    state: str
    generation: str
    work_id: str
    cause: str
    changed_at_ms: int
    generation_seen: int
    before: str = "absent"
    reserved: Reservation | None = None


class End(Struct, frozen=True, gc=False):
    """One end that nobody asked for: a resident that died, or a load that failed."""

    at_ms: int
    code: Code


class Circuit(Struct, frozen=True, gc=False):
    """How often a deployment ended by itself on one node, and whether loads are refused for that.

    Closed while `until_ms` is None, open until that time, then half open: the next load decides. `ends` is
    bounded; `openings` counts in a row, until one closing has lasted (see `domain.circuits`).
    """

    ends: list[End] = field(default_factory=list)  # the newest last
    openings: int = 0
    until_ms: int | None = None
    closed_at_ms: int = 0
    cause: Code | None = None
    message: str = ""


class DeploymentState(Struct, frozen=True, gc=False):
    deployment_id: str
    name: str
    candidate_id: str
    candidate_digest: str
    artifact_id: str
    profile_id: str
    fingerprint: str
    capability: str
    node_ids: list[str]
    created_at_ms: int
    retired: bool = False
    residencies: dict[str, Residency] = field(default_factory=dict)  # by node
    circuits: dict[str, Circuit] = field(default_factory=dict)  # by node; none where nothing ended by itself

    def residency(self, node_id: str) -> str:
        held = self.residencies.get(node_id)
        return held.state if held else "absent"


State = ArtifactState | ProfileState | NodeState | WorkState | CandidateState | DeploymentState


def stream_of(noun: str, ident: Any) -> str:
    """The stream id of a thing: `<noun>-<id>`."""
    return f"{noun}-{ident}"
