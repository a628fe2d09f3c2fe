"""What a worker holds now: the inventory, the heartbeat that carries its digest, and the live answer.

Nothing here is ever written to the log by itself. A residency claim rests on a `LiveAnswer` of the
current generation; silence is `unknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.canonical import digest_of
from schemas.devices import DEVICES_MAX, DeviceReading
from schemas.tokens import UNCONFIRMED_EVIDENCE_MAX, ByteCount, Digest, Generation, Milliseconds, Token
from schemas.work import Offer

ResidentState = Literal["loading", "resident", "draining", "unloading"]


class InventoryEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One resident. An exact match of all fields but state is what adoption after a restart needs."""

    deployment_id: Token
    artifact_id: Digest
    profile_id: Digest
    fingerprint: Digest
    generation: Generation
    state: ResidentState


def inventory_digest(entries: Sequence[InventoryEntry]) -> str:
    return digest_of(sorted(entries, key=lambda entry: entry.deployment_id))


class Beat(Struct, frozen=True, forbid_unknown_fields=True):
    """On `tenure.beat.v1.<node>`, as a request. `unconfirmed` lists evidence ids still kept by the worker.

    `devices` is not read: device memory is told by the live answer, where somebody asks for it.
    """

    node_id: Token
    generation: Generation
    boot_id: Token
    inventory_digest: Digest
    unconfirmed: Annotated[list[Token], Meta(max_length=UNCONFIRMED_EVIDENCE_MAX)]
    devices: Annotated[list[DeviceReading], Meta(max_length=DEVICES_MAX)] = []


class BeatReply(Struct, frozen=True, forbid_unknown_fields=True):
    """`fenced` tells an old generation to stop. `session_ms` counts from when the beat was sent.

    `confirmed` is the part of `unconfirmed` whose outcome is committed. `offers` repeats open work, so a
    lost bus message delays work by one beat at most. `cancelled` lists leased work that should stop.
    `unwanted` lists deployments that the worker holds and the log does not know of: it should end them.
    `device_reserve_bytes` is what admission leaves free on every device; the worker repeats it in its live answer.
    """

    fenced: bool
    session_ms: int
    beat_ms: int
    confirmed: list[Token]
    offers: list[Offer]
    cancelled: list[Token]
    unwanted: list[Token] = []
    device_reserve_bytes: ByteCount | None = None


class Resident(Struct, frozen=True, forbid_unknown_fields=True):
    entry: InventoryEntry
    since_ms: Milliseconds
    child_pid: int
    in_flight: int
    invocations: int
    process_bytes: int | None


class LiveAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """The reply on `tenure.live.v1.<node>`: what this generation holds at this moment.

    `devices` is its last reading of each device, empty where the node has none, and `devices_age_ms` how long ago
    that was made, by the worker's own clock: None where none was made yet. `device_reserve_bytes` is the control
    plane's word from the last heartbeat on what it leaves free on every device.
    """

    node_id: Token
    generation: Generation
    boot_id: Token
    serving: bool  # False once the worker has stopped itself because it could not renew
    residents: list[Resident]
    devices: Annotated[list[DeviceReading], Meta(max_length=DEVICES_MAX)] = []
    devices_age_ms: Milliseconds | None = None
    device_reserve_bytes: ByteCount | None = None
