"""Evidence: what a worker saw, numbered and signed.

A worker's statement is one `Evidence` as JSON text, signed whole (Ed25519 over the UTF-8 bytes of that
text) with the session key whose public half the node's `worker.registered.v1` event holds. The signed
text goes into the log unchanged, so it can be checked years later without secrets.

What could not be measured is `Reading(unavailable=reason)`, never 0.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from schemas.codes import Code
from schemas.tasks.golden import GoldenSeen
from schemas.tokens import EVIDENCE_BYTES_MAX, ByteCount, Digest, Generation, Milliseconds, Token

DETAILS_MAX = 32
DETAIL_CHARACTERS_MAX = 256
Detail = Annotated[str, Meta(max_length=DETAIL_CHARACTERS_MAX)]


class Reading(Struct, frozen=True, forbid_unknown_fields=True):
    """A measurement in bytes, or the reason why there is none."""

    bytes: ByteCount | None = None
    unavailable: str | None = None


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """Memory around one load, by instrument. A field that is left out was not told by an earlier worker.

    `process_*` is the child's PSS, its proportional share of resident pages. `process_before` is before weights,
    `process_peak` the highest seen sample, `process_after` 0 once the child has ended. `process_private_loaded` is
    what the child alone held. `allocator_*` is the ML
    runtime's own count of the device. `allocator_after` is with the model dropped and the child still there.
    `allocator_reserved_loaded` and `allocator_reserved_after` include what the runtime keeps for itself.
    `device_*` is the driver's count. `device_own_loaded` and `device_own_after` are of the child alone.
    `device_external` is of processes that are not this worker's. `cgroup_limit` is the smallest limit on this worker's
    memory cgroup. `cgroup_current` is what counted against it with the model loaded.

    `allocator_reclaimed` is what dropping the model gave back to the device. `reclaimed` is what the child alone
    held and no longer does. `reclaim_complete` is true where the child has ended and, on a device, the driver's count
    shows that the memory came back. `reclaim_reason` is why it is not: not given back, or not measured.
    `reclaim_waited_ms` is how long the driver was given to free it.
    """

    process_before: Reading
    process_peak: Reading
    process_loaded: Reading
    process_after: Reading
    allocator_loaded: Reading
    allocator_after: Reading
    device_used_before: Reading
    device_used_loaded: Reading
    device_used_after: Reading
    device_external: Reading
    reclaimed: Reading
    reclaim_complete: bool
    process_private_loaded: Reading | UnsetType = UNSET
    allocator_before: Reading | UnsetType = UNSET
    allocator_peak: Reading | UnsetType = UNSET
    allocator_reserved_loaded: Reading | UnsetType = UNSET
    allocator_reserved_after: Reading | UnsetType = UNSET
    allocator_reclaimed: Reading | UnsetType = UNSET
    device_total: Reading | UnsetType = UNSET
    device_own_loaded: Reading | UnsetType = UNSET
    device_own_after: Reading | UnsetType = UNSET
    cgroup_limit: Reading | UnsetType = UNSET
    cgroup_current: Reading | UnsetType = UNSET
    reclaim_waited_ms: float | UnsetType = UNSET
    reclaim_reason: Annotated[str, Meta(max_length=1_000)] | UnsetType = UNSET


class Attempt(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One try at breaking out of the sandbox from inside it, and how it ended.

    `outside` is what came of the same try just before, without the sandbox. Where it failed there too it is not
    `tried`: nothing was taken away, so it proves nothing.
    """

    action: str
    refused: bool
    detail: str
    outside: str = ""
    tried: bool = True


class OfflineProof(Struct, frozen=True, forbid_unknown_fields=True):
    """Which layers were applied, and each attempt's result.

    `proven`: every attempt that was tried was refused, and none that a proof needs was left untried. It does not
    depend on which layers did it.
    """

    applied: list[str]
    missing: list[str]
    attempts: list[Attempt]
    proven: bool


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """Layer by layer: the child answers, the runtime is usable, the model infers, the output is sound.

    `golden` is how the profile's golden probes went; it is left out where there were none to ask.
    """

    process: bool
    runtime: bool
    model: bool
    capability: bool
    latency_ms: float
    output_digest: str | None = None
    output_dimensions: int | None = None
    detail: str = ""
    golden: list[GoldenSeen] | UnsetType = UNSET


class Reason(Struct, frozen=True, forbid_unknown_fields=True):
    code: Code
    message: str


class Progress(Struct, frozen=True, tag="progress", forbid_unknown_fields=True):
    stage: Literal["preparing", "loading", "healthchecking", "ready", "unloading"]


class Verified(Struct, frozen=True, tag="verified", forbid_unknown_fields=True):
    location: str
    files: int
    bytes: ByteCount
    duration_ms: float


class Assessed(Struct, frozen=True, tag="assessed", forbid_unknown_fields=True):
    """Static inspection only: no weights were loaded and no code from the folder ran.

    `details` are facts that few models have, such as how a GGUF file is quantised.
    """

    compatible: bool
    reasons: list[Reason]
    fingerprint: Digest
    architecture: str | None = None
    parameters: int | None = None
    weights_bytes: ByteCount | None = None
    dimensions: int | None = None
    max_length: int | None = None
    details: Annotated[dict[Detail, Detail], Meta(max_length=DETAILS_MAX)] | UnsetType = UNSET


Way = Literal["forked", "fresh"]  # how a model process was started; workers of old did not say


class Probed(Struct, frozen=True, tag="probed", forbid_unknown_fields=True):
    """The whole cycle ran: load, health, measure, unload, exit.

    `prepare_ms` has the imports of the runtime only where the process was started `fresh`: a `forked` one is a copy of
    the worker's fork server, which has them done.
    """

    fingerprint: Digest
    health: Health
    memory: Memory
    offline: OfflineProof
    prepare_ms: float
    load_ms: float
    health_ms: float
    unload_ms: float
    child_pid: int
    child_exit_code: int
    started: Way | UnsetType = UNSET


class Loaded(Struct, frozen=True, tag="loaded", forbid_unknown_fields=True):
    fingerprint: Digest
    health: Health
    memory: Memory
    offline: OfflineProof
    load_ms: float
    child_pid: int
    started: Way | UnsetType = UNSET


class HealthChecked(Struct, frozen=True, tag="health_checked", forbid_unknown_fields=True):
    health: Health
    invocations: int


class Drained(Struct, frozen=True, tag="drained", forbid_unknown_fields=True):
    in_flight: int
    waited_ms: float
    invocations: int


class Unloaded(Struct, frozen=True, tag="unloaded", forbid_unknown_fields=True):
    memory: Memory
    unload_ms: float
    child_exit_code: int
    invocations: int


class WorkFailed(Struct, frozen=True, tag="failed", forbid_unknown_fields=True):
    code: Code
    message: Annotated[str, Meta(max_length=4_000)]
    detail: dict[str, str] = {}


class WorkCancelled(Struct, frozen=True, tag="cancelled", forbid_unknown_fields=True):
    stage: str


class ResidentLost(Struct, frozen=True, tag="resident_lost", forbid_unknown_fields=True):
    """A resident's child ended without being asked to. `work_id` of the evidence is the load job's."""

    deployment_id: Token
    code: Code
    message: Annotated[str, Meta(max_length=4_000)]
    exit_code: int | None = None


Statement = (
    Progress
    | Verified
    | Assessed
    | Probed
    | Loaded
    | HealthChecked
    | Drained
    | Unloaded
    | WorkFailed
    | WorkCancelled
    | ResidentLost
)


class Evidence(Struct, frozen=True, forbid_unknown_fields=True):
    """One numbered statement. Numbers grow by one within a generation; the id is never used twice."""

    evidence_id: Token
    node_id: Token
    generation: Generation
    number: Annotated[int, Meta(ge=1, le=2**53 - 1)]
    work_id: Token
    attempt: Annotated[int, Meta(ge=1, le=2**31)]
    seen_at_ms: Milliseconds
    statement: Statement


class SignedEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """`payload` is the Evidence as JSON text, `signature` Ed25519 over its UTF-8 bytes, in base64."""

    payload: Annotated[str, Meta(max_length=EVIDENCE_BYTES_MAX)]
    signature: Annotated[str, Meta(max_length=128)]
