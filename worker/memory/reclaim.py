"""Whether a device got back what a model's process had held, as far as the driver tells.

Two ways to know, and no third: where the driver says what each process holds, the ended process is no longer listed
and nothing more than before is in use by nobody it lists; where it tells the total alone, that fell by what the
runtime's allocator had reserved. A driver frees after the process has ended, so SETTLE_SECONDS_MAX are allowed for it.
What cannot be measured is not reclaimed: it is said, with the reason.

Other processes may take or give memory between the two looks. The first way is not disturbed by it; the second is.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from schemas.evidence import Reading
from worker.memory.accelerator import DeviceLook
from worker.memory.attribution import NO_FIGURE, held_by, held_by_others

SETTLE_SECONDS_MAX = 5.0
SETTLE_POLL_SECONDS = 0.05
SLACK_BYTES = 64 * 1024 * 1024  # a driver's own bookkeeping may move by this much around one load
NO_DEVICE = Reading(unavailable="the profile runs on cpu")


class DeviceUse(Struct, frozen=True):
    """One device at one moment of a load.

    `own` is the model's process alone, `external` what no process of this worker holds, `unlisted` what is in use
    and held by no process that the driver lists.
    """

    total: Reading = NO_DEVICE
    used: Reading = NO_DEVICE
    own: Reading = NO_DEVICE
    external: Reading = NO_DEVICE
    unlisted: Reading = NO_DEVICE


def use_of(look: DeviceLook, pid: int, siblings: Collection[int], *, contained: bool, loaded: bool) -> DeviceUse:
    """From a look, while the model's process runs. `loaded`: its model is there, so it must be listed."""
    expected = {pid} if loaded else ()
    own = held_by(look, {pid}, expected, contained=contained)
    if own.bytes is None:
        return DeviceUse(look.total, look.used, own, own, _unlisted(look))
    external = held_by_others(look, held_by(look, {pid, *siblings}, expected, contained=contained))
    return DeviceUse(look.total, look.used, own, external, _unlisted(look))


def use_after(look: DeviceLook, pid: int, siblings: Collection[int], before: DeviceUse) -> DeviceUse:
    """From a look after the process ended. Where it was told from others before, not listed means gone."""
    if before.own.bytes is None:
        return DeviceUse(look.total, look.used, before.own, before.own, _unlisted(look))
    if look.unlisted or look.held.get(pid, 0) is None:
        why = Reading(unavailable=look.unlisted or NO_FIGURE)
        return DeviceUse(look.total, look.used, why, why, _unlisted(look))
    own = Reading(bytes=look.held.get(pid, 0))
    external = held_by_others(look, held_by(look, {pid, *siblings}, contained=False))
    return DeviceUse(look.total, look.used, own, external, _unlisted(look))


def _unlisted(look: DeviceLook) -> Reading:
    if look.used.bytes is None:
        return look.used
    if look.unlisted:
        return Reading(unavailable=look.unlisted)
    listed = [held for held in look.held.values() if held is not None]
    if len(listed) < len(look.held):
        return Reading(unavailable="NVML tells no memory for some processes")
    return Reading(bytes=max(look.used.bytes - sum(listed), 0))


class Verdict(Struct, frozen=True):
    """`complete`, or the reason why not. `settled`: looking again will not change it."""

    complete: bool
    reason: str = ""
    settled: bool = True


def judge(before: DeviceUse, after: DeviceUse, reserved_bytes: int | None) -> Verdict:
    """From the last look before the unload and one after the exit. `reserved_bytes` is the allocator's word."""
    if before.used.bytes is None or after.used.bytes is None:
        why = after.used.unavailable or before.used.unavailable
        return Verdict(False, f"not measured: {why}")
    if before.own.bytes is not None and after.own.bytes is not None:
        if after.own.bytes > 0:
            return Verdict(
                False, f"the driver still lists the ended process with {after.own.bytes} bytes", settled=False
            )
        if before.unlisted.bytes is not None and after.unlisted.bytes is not None:
            more = after.unlisted.bytes - before.unlisted.bytes
            if more <= SLACK_BYTES:
                return Verdict(True)
            why = f"{more} bytes more than before the unload are in use by no process that the driver lists"
            return Verdict(False, why, settled=False)
    return _by_total(before, after, reserved_bytes)


def _by_total(before: DeviceUse, after: DeviceUse, reserved_bytes: int | None) -> Verdict:
    held = before.own.bytes if before.own.bytes is not None else reserved_bytes
    if held is None:
        why = before.own.unavailable or after.own.unavailable
        return Verdict(False, f"not measured: how much the model held is not known ({why})")
    fell = (before.used.bytes or 0) - (after.used.bytes or 0)
    if fell >= held - SLACK_BYTES:
        return Verdict(True)
    why = f"the device's use fell by {fell} bytes of {held} held; what others took meanwhile is not known"
    return Verdict(False, why, settled=False)
