"""Device memory: what a worker measured of it, and what of it is kept for one piece of work.

A reading is one device at one moment, in the driver's own count. What could not be measured is None, with the
reason in `unavailable`, never 0. A reservation repeats every number that its admission rested on, so that the
decision can be checked from the log alone; see docs/guide/placement.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.tokens import ByteCount

DEVICES_MAX = 64
DeviceIndex = Annotated[int, Meta(ge=0, le=63, description="The driver's number of the device.")]


class DeviceReading(Struct, frozen=True, forbid_unknown_fields=True):
    """One device now. `own_bytes` is what this worker's processes hold, `external_bytes` what others do.

    The two are None where the driver does not attribute memory to our processes, as in a container with pids of
    its own; total and used are measured even then, and `unattributed` says why those two are not.
    """

    index: DeviceIndex
    total_bytes: ByteCount | None = None
    used_bytes: ByteCount | None = None
    own_bytes: ByteCount | None = None
    external_bytes: ByteCount | None = None
    unavailable: Annotated[str, Meta(max_length=400)] | None = None
    unattributed: Annotated[str, Meta(max_length=400)] | None = None


class Reservation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`needed_bytes` of one device, and the numbers at its admission.

    `source` says whether the need was measured by the candidate's probe or estimated from the size of the weights.
    `total_bytes`, `used_bytes` and `own_bytes` are the claim's reading; `reserve_bytes` is what is always left free;
    `resident_bytes` and `pending_bytes` are what residents and other work under way had reserved there already.
    """

    device_index: DeviceIndex
    needed_bytes: ByteCount
    source: Literal["measured", "estimated"]
    total_bytes: ByteCount
    used_bytes: ByteCount
    reserve_bytes: ByteCount
    resident_bytes: ByteCount
    pending_bytes: ByteCount
    own_bytes: ByteCount | None = None
