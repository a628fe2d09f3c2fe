"""Work: the leased items a worker does, and the orders it receives when it claims one.

A *spec* is what the log keeps: references only. An *order* is what the claimant gets: the spec with the
file list, location and profile it refers to, so that a worker needs no other look-up.

Kinds: `verify` and `assess` look at files; `probe` is a RuntimeProbe; `load`, `health`, `drain` and
`unload` are the ServingJobs of a deployment.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from schemas.artifacts import FileEntry
from schemas.profiles import Adapter, RuntimeProfile, Task
from schemas.tokens import Digest, DurationMs, Generation, Milliseconds, Token

WorkKind = Literal["verify", "assess", "probe", "load", "health", "drain", "unload"]
# The stages of a probe, and of a load as far as `ready`; the last four say how work ended.
Stage = Literal[
    "queued", "preparing", "loading", "healthchecking", "ready", "unloading", "completed", "failed", "cancelled"
]
RUNNING_STAGES = ("preparing", "loading", "healthchecking", "ready", "unloading")
FINAL_STAGES = ("completed", "failed", "cancelled")


class VerifySpec(Struct, frozen=True, tag="verify", forbid_unknown_fields=True):
    artifact_id: Digest
    location: str


class AssessSpec(Struct, frozen=True, tag="assess", forbid_unknown_fields=True):
    artifact_id: Digest
    adapter: Adapter
    task: Task


class ProbeSpec(Struct, frozen=True, tag="probe", forbid_unknown_fields=True):
    artifact_id: Digest
    profile_id: Digest
    assessment_id: Token
    fingerprint: Digest


class JobSpec(Struct, frozen=True, tag="job", forbid_unknown_fields=True):
    """A ServingJob of one deployment on one node."""

    verb: Literal["load", "health", "drain", "unload"]
    deployment_id: Token
    artifact_id: Digest
    profile_id: Digest


WorkSpec = VerifySpec | AssessSpec | ProbeSpec | JobSpec


class Offer(Struct, frozen=True, forbid_unknown_fields=True):
    """On `tenure.work.v1.<node>`: there is work to claim. A hint; the claim decides."""

    work_id: Token
    node_id: Token
    kind: WorkKind
    attempt: int


class WorkOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The reply to a granted claim. `token` proves the lease and is told once; the log holds its SHA-256.

    The lease ends at `until_ms` on the control plane's clock; a worker counts `lease_ms` from the moment
    it *sent* the claim, on its own monotonic clock, which can only be earlier.
    """

    work_id: Token
    kind: WorkKind
    attempt: int
    generation: Generation
    token: str
    lease_ms: DurationMs
    until_ms: Milliseconds
    deadline_ms: Milliseconds
    spec: WorkSpec
    location: str | None = None
    files: list[FileEntry] = []
    profile: RuntimeProfile | None = None
