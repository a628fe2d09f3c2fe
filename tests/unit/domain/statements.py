"""Statements a worker could make: sound by default, with one thing wrong on request."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from schemas import evidence as se
from schemas.codes import Code

FINGERPRINT_ELSEWHERE = "e" * 64


def health(**wrong: Any) -> se.Health:
    sound = se.Health(
        process=True, runtime=True, model=True, capability=True, latency_ms=1.5, output_digest="f" * 64,
        output_dimensions=384,
    )  # fmt: skip
    return replace(sound, **wrong)


def on_device(allocator: int | None, before: int | None, loaded: int | None) -> se.Memory:
    """Memory of a load on a device, in bytes; None where it could not be measured."""

    def reading(size: int | None) -> se.Reading:
        return se.Reading(unavailable="NVML: not supported") if size is None else se.Reading(size)

    return replace(
        memory(), allocator_loaded=reading(allocator), device_used_before=reading(before),
        device_used_loaded=reading(loaded),
    )  # fmt: skip


def memory(*, reclaim_complete: bool = True) -> se.Memory:
    cpu_only = se.Reading(unavailable="no device")
    return se.Memory(
        process_before=se.Reading(100_000_000), process_peak=se.Reading(400_000_000),
        process_loaded=se.Reading(300_000_000), process_after=se.Reading(0), allocator_loaded=cpu_only,
        allocator_after=cpu_only, device_used_before=cpu_only, device_used_loaded=cpu_only,
        device_used_after=cpu_only, device_external=cpu_only, reclaimed=se.Reading(300_000_000),
        reclaim_complete=reclaim_complete,
    )  # fmt: skip


def offline(*, proven: bool = True) -> se.OfflineProof:
    return se.OfflineProof(
        applied=["landlock", "seccomp"] if proven else [], missing=[] if proven else ["landlock"],
        attempts=[se.Attempt("connect", proven, "EPERM" if proven else "connected")], proven=proven,
    )  # fmt: skip


def verified(files: int = 2, size: int = 1_100, location: str = "models/mini") -> se.Verified:
    return se.Verified(location=location, files=files, bytes=size, duration_ms=2.5)


def assessed(fingerprint: str, *, compatible: bool = True) -> se.Assessed:
    reasons = [] if compatible else [se.Reason(Code.RUNTIME_INCOMPATIBLE, "no adapter reads this architecture")]
    return se.Assessed(compatible=compatible, reasons=reasons, fingerprint=fingerprint, dimensions=384)


def probed(fingerprint: str, **wrong: Any) -> se.Probed:
    sound = se.Probed(
        fingerprint=fingerprint, health=health(), memory=memory(), offline=offline(), prepare_ms=1.0, load_ms=900.0,
        health_ms=12.0, unload_ms=40.0, child_pid=4_242, child_exit_code=0,
    )  # fmt: skip
    return replace(sound, **wrong)


def loaded(fingerprint: str, **wrong: Any) -> se.Loaded:
    sound = se.Loaded(
        fingerprint=fingerprint, health=health(), memory=memory(), offline=offline(), load_ms=900.0, child_pid=4_243
    )
    return replace(sound, **wrong)


def drained(in_flight: int = 0) -> se.Drained:
    return se.Drained(in_flight=in_flight, waited_ms=10.0, invocations=7)


def unloaded(*, reclaim_complete: bool = True) -> se.Unloaded:
    return se.Unloaded(
        memory=memory(reclaim_complete=reclaim_complete), unload_ms=40.0, child_exit_code=0, invocations=7
    )


def failed(code: Code = Code.LOAD_FAILED, message: str = "the runtime refused the files") -> se.WorkFailed:
    return se.WorkFailed(code=code, message=message)
