"""The rows of the `view.*` tables, one struct per table. The tables are generated from these structs.

`id` is the primary key. Every row carries `position`, the log position that last changed it. Times are
milliseconds since the epoch on the control plane's clock. A residency row is what the log knows; whether
a model is loaded *now* is the worker's to say (`tenure.live.v1.<node>`).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    id: str
    position: int


class ArtifactRow(Row, frozen=True, kw_only=True):
    """`verified` maps a node to the location under which it has verified every file."""

    name: str
    files: int
    bytes: int
    verified: dict[str, Any]
    registered_at_ms: int


class ProfileRow(Row, frozen=True, kw_only=True):
    adapter: str
    task: str
    assessment_id: str
    profile: dict[str, Any]
    created_at_ms: int


class NodeRow(Row, frozen=True, kw_only=True):
    """`session` is alive, lost, left or none. `generation` is the newest one, "0" before the first worker."""

    enabled: bool
    session: str
    generation: str
    boot_id: str | None
    fingerprint: str | None
    artifact_root: str | None
    capabilities: dict[str, Any]
    environment: dict[str, Any]
    changed_at_ms: int


class WorkRow(Row, frozen=True, kw_only=True):
    """Any leased work: verify, assess, probe, load, health, drain, unload. `result` is the final statement.

    `reserved_bytes` of the node's device `reserved_device` are kept for it as long as its lease lasts.
    """

    kind: str
    node_id: str
    stage: str
    attempt: int
    generation: str
    lease_until_ms: int | None
    artifact_id: str | None
    profile_id: str | None
    deployment_id: str | None
    adapter: str | None
    cancel_requested: bool
    code: str | None
    message: str
    result: dict[str, Any]
    rejected_evidence: int
    requested_at_ms: int
    deadline_ms: int
    ended_at_ms: int | None
    reserved_bytes: int | None = None
    reserved_device: int | None = None


class CandidateRow(Row, frozen=True, kw_only=True):
    """`approved_by` is None until a person approved exactly `digest`."""

    digest: str
    artifact_id: str
    profile_id: str
    fingerprint: str
    node_id: str
    probe_id: str
    adapter: str
    task: str
    status: str
    production: bool
    approved_by: str | None
    approved_at_ms: int | None
    created_at_ms: int


class DeploymentRow(Row, frozen=True, kw_only=True):
    name: str
    candidate_id: str
    candidate_digest: str
    artifact_id: str
    profile_id: str
    fingerprint: str
    capability: str
    node_ids: list[str]
    retired: bool
    created_at_ms: int


class ResidencyRow(Row, frozen=True, kw_only=True):
    """`id` is `<deployment id>.<node id>`.

    The circuit's columns are None while it is closed. Before `circuit_until_ms` loads are refused with
    RUNTIME_CRASH_LOOP because of `circuit_cause`; after it, one load may try. `reserved_bytes` is memory of
    the node's device `reserved_device`.
    """

    deployment_id: str
    node_id: str
    state: str
    generation: str
    work_id: str
    cause: str
    changed_at_ms: int
    circuit_until_ms: int | None = None
    circuit_cause: str | None = None
    circuit_openings: int | None = None
    reserved_bytes: int | None = None
    reserved_device: int | None = None


TABLES: dict[str, type[Row]] = {
    "artifact": ArtifactRow,
    "profile": ProfileRow,
    "node": NodeRow,
    "work": WorkRow,
    "candidate": CandidateRow,
    "deployment": DeploymentRow,
    "residency": ResidencyRow,
}
