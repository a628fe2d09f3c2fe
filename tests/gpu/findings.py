"""What the check concludes from what it measured: held, not held, or not measured with the reason. Pure.

Nothing that was not measured is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct, UnsetType

from schemas.devices import DeviceReading
from schemas.evidence import Memory, Reading

SLACK_BYTES = 64 * 1024 * 1024
CONTEXT_BYTES_MAX = 4 * 1024**3  # what a driver's context and the libraries' own buffers may take beside the allocator

Outcome = Literal["held", "not held", "not measured"]
Known = Reading | UnsetType
_Holds = Callable[[int, int, int], bool]


class Finding(Struct, frozen=True):
    name: str
    outcome: Outcome
    detail: str = ""


def judged(name: str, holds: bool, detail: str = "") -> Finding:
    return Finding(name, "held" if holds else "not held", detail)


def of_memory(memory: Memory) -> list[Finding]:
    """The instruments held against each other, around one load on a device."""
    own, reserved = memory.device_own_loaded, memory.allocator_reserved_loaded
    return [
        _compare(
            "the device's use grew by what the allocator reserved",
            memory.device_used_loaded, memory.device_used_before, reserved,
            lambda loaded, before, held: loaded - before >= held - SLACK_BYTES,
        ),
        _compare(
            "the driver says the process holds at least what the allocator reserved", own, reserved,
            Reading(bytes=0), lambda process, held, _: process >= held,
        ),
        _compare(
            "what the driver counts beside the allocator is a context's size", own, reserved,
            Reading(bytes=0), lambda process, held, _: process - held <= CONTEXT_BYTES_MAX,
        ),
        _compare(
            "the allocator's peak is no less than what is loaded, and something is", memory.allocator_peak,
            memory.allocator_loaded, Reading(bytes=0), lambda peak, loaded, _: peak >= loaded > 0,
        ),
        _compare(
            "dropping the model frees its tensors", memory.allocator_after, memory.allocator_loaded,
            Reading(bytes=0), lambda after, loaded, _: after < loaded,
        ),
        _compare(
            "the ended process is no longer on the driver's list", memory.device_own_after, Reading(bytes=0),
            Reading(bytes=0), lambda after, _, __: after == 0,
        ),
        judged(
            "the process has gone", memory.process_after.bytes == 0,
            f"PSS {_said(memory.process_loaded)} loaded, {_said(memory.process_after)} after",
        ),
        judged(
            "the device has its memory back", memory.reclaim_complete,
            f"{memory.reclaim_reason or 'complete'}; waited {memory.reclaim_waited_ms or 0:.0f} ms",
        ),
    ]  # fmt: skip


def of_stranger(before: DeviceReading, during: DeviceReading, after: DeviceReading, held: int) -> list[Finding]:
    """A stranger that held `held` bytes, between two readings without it. A model of ours may be loaded meanwhile."""
    names = ("a stranger's memory is external use", "a stranger's memory is not ours", "it is gone with its process")
    three = (before, during, after)
    if any(each.external_bytes is None or each.own_bytes is None for each in three):
        why = next((w for each in three if (w := each.unavailable or each.unattributed)), "no reading")
        return [Finding(name, "not measured", why) for name in names]
    external = [each.external_bytes or 0 for each in three]
    own = [each.own_bytes or 0 for each in three]
    told = f"external {external[0]}, {external[1]}, {external[2]}; own {own[0]}, {own[1]}, {own[2]}; it held {held}"
    return [
        judged(names[0], external[1] - external[0] >= held - SLACK_BYTES, told),
        judged(names[1], abs(own[1] - own[0]) <= SLACK_BYTES, told),
        judged(names[2], external[2] <= external[0] + SLACK_BYTES, told),
    ]


def _compare(name: str, first: Known, second: Known, third: Known, holds: _Holds) -> Finding:
    values = (first, second, third)
    for value in values:
        if isinstance(value, UnsetType) or value.bytes is None:
            return Finding(name, "not measured", _said(value))
    one, two, three = (value.bytes or 0 for value in values if isinstance(value, Reading))
    detail = ", ".join(str(each) for each in (one, two, three))
    return judged(name, holds(one, two, three), detail)


def _said(value: Known) -> str:
    if isinstance(value, UnsetType):
        return "not told"
    return str(value.bytes) if value.bytes is not None else value.unavailable or "no reason given"
