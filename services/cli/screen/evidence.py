"""How a work item's final statement is shown: the facts a person decides on, in the order they need them.

Statements arrive as plain values, as the tables hold them; what a statement lacks is left out, never invented.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from projections.rows import WorkRow
from services.cli.screen.formats import UNAVAILABLE, reading, short, size, span, yes

Facts = list[tuple[str, object]]
_HEALTH_LAYERS = ("process", "runtime", "model", "capability")


def facts(work: WorkRow) -> Facts:
    """Everything worth seeing about a work item and what it found."""
    shown: Facts = [("work", work.id), ("kind", work.kind), ("node", work.node_id), ("stage", work.stage)]
    if work.attempt:
        shown.append(("attempt", f"{work.attempt}, generation {work.generation}"))
    if work.artifact_id:
        shown.append(("artifact", short(work.artifact_id)))
    if work.profile_id:
        shown.append(("profile", short(work.profile_id)))
    if work.deployment_id:
        shown.append(("deployment", short(work.deployment_id)))
    if work.ended_at_ms is not None:
        shown.append(("took", span(work.ended_at_ms - work.requested_at_ms)))
    if work.code:
        shown.append(("code", work.code))
    if work.message:
        shown.append(("message", work.message))
    if work.rejected_evidence:
        shown.append(("rejected evidence", work.rejected_evidence))
    return shown + statement(work.result)


def statement(result: Mapping[str, Any]) -> Facts:
    """The facts of one statement, whatever its kind."""
    shown: Facts = []
    if "compatible" in result:
        shown += _assessment(result)
    if "location" in result:
        shown.append(("location", result["location"]))
        shown.append(("bytes hashed", f"{size(result.get('bytes'))} in {span(result.get('duration_ms'))}"))
    timings = [
        f"{stage} {span(result[f'{stage}_ms'])}"
        for stage in ("prepare", "load", "health", "unload", "waited")
        if result.get(f"{stage}_ms") is not None
    ]
    if timings:
        shown.append(("timings", ", ".join(timings)))
    if isinstance(result.get("health"), Mapping):
        shown += _health(result["health"])
    if isinstance(result.get("memory"), Mapping):
        shown += _memory(result["memory"])
    if isinstance(result.get("offline"), Mapping):
        shown += _offline(result["offline"])
    shown += [
        (label, result[field])
        for field, label in (
            ("child_pid", "child pid"),
            ("child_exit_code", "child exit code"),
            ("invocations", "invocations"),
            ("in_flight", "in flight"),
        )
        if result.get(field) is not None
    ]
    return shown


def _assessment(result: Mapping[str, Any]) -> Facts:
    shown: Facts = [("compatible", yes(result["compatible"]))]
    shown += [("reason", f"{each.get('code')}: {each.get('message')}") for each in result.get("reasons") or []]
    for field in ("architecture", "parameters", "dimensions", "max_length"):
        if result.get(field) is not None:
            value = result[field]
            shown.append((field.replace("_", " "), f"{value:,}" if isinstance(value, int) else value))
    if result.get("weights_bytes") is not None:
        shown.append(("weights", size(result["weights_bytes"])))
    shown += sorted((result.get("details") or {}).items())
    return shown


def _health(health: Mapping[str, Any]) -> Facts:
    layers = ", ".join(f"{layer} {'ok' if health.get(layer) else 'FAILED'}" for layer in _HEALTH_LAYERS)
    shown: Facts = [("health", f"{layers} in {span(health.get('latency_ms'))}")]
    if health.get("output_dimensions") is not None:
        shown.append(
            ("output", f"{health['output_dimensions']} dimensions, digest {short(health.get('output_digest'))}")
        )
    if health.get("detail"):
        shown.append(("detail", health["detail"]))
    return shown


# Of each instrument: what a person calls the reading, and its field.
_INSTRUMENTS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("process memory", (("before", "process_before"), ("peak", "process_peak"), ("loaded", "process_loaded"),
                        ("after", "process_after"))),
    ("allocator", (("before", "allocator_before"), ("peak", "allocator_peak"), ("loaded", "allocator_loaded"),
                   ("after", "allocator_after"))),
    ("allocator reserved", (("loaded", "allocator_reserved_loaded"), ("after", "allocator_reserved_after"))),
    ("device", (("total", "device_total"), ("before", "device_used_before"), ("loaded", "device_used_loaded"),
                ("after", "device_used_after"))),
    ("device, own", (("loaded", "device_own_loaded"), ("after", "device_own_after"))),
    ("device, external", (("loaded", "device_external"),)),
    ("cgroup", (("limit", "cgroup_limit"), ("current", "cgroup_current"))),
)  # fmt: skip


def _memory(memory: Mapping[str, Any]) -> Facts:
    shown: Facts = []
    reasons: set[str] = set()
    for label, fields in _INSTRUMENTS:
        told = [(name, reading(memory[field])) for name, field in fields if field in memory]
        if not told:  # an earlier worker has not this instrument
            continue
        texts = {text for _, text in told}
        if len(texts) > 1 or not told[0][1].startswith(UNAVAILABLE):
            shown.append((label, ", ".join(f"{name} {text}" for name, text in told)))
        elif texts.isdisjoint(reasons):  # one reason for all of them is said once
            shown.append((label, told[0][1]))
            reasons |= texts
    dropped = reading(memory.get("allocator_reclaimed"))
    if dropped not in reasons and "allocator_reclaimed" in memory:
        shown.append(("reclaimed by unloading", dropped))
    shown.append(("reclaimed", _reclaimed(memory)))
    return shown


def _reclaimed(memory: Mapping[str, Any]) -> str:
    """What the process's end gave back, and whether that is all: never without a reason where it is not."""
    told = reading(memory.get("reclaimed"))
    if memory.get("reclaim_complete"):
        return f"{told} (complete)"
    reason = memory.get("reclaim_reason")
    if reason and reason in told:  # nothing is expected back yet: the model is still loaded
        return told
    return f"{told} (NOT complete: {reason})" if reason else f"{told} (NOT complete)"


def refusals(offline: Mapping[str, Any]) -> str:
    """How many attempts at breaking out were refused, of those that could be tried at all."""
    attempts = offline.get("attempts") or []
    tried = [each for each in attempts if each.get("tried", True)]
    refused = sum(1 for each in tried if each.get("refused"))
    told = f"{refused} of {len(tried)} attempts refused"
    return told if len(tried) == len(attempts) else f"{told}, {len(attempts) - len(tried)} could not be tried"


def _offline(offline: Mapping[str, Any]) -> Facts:
    attempts = offline.get("attempts") or []
    word = "proven" if offline.get("proven") else "NOT PROVEN"
    shown: Facts = [("offline", f"{word}: {refusals(offline)}")]
    shown.append(("layers", ", ".join(offline.get("applied") or []) or "none"))
    if offline.get("missing"):
        shown.append(("layers missing", ", ".join(offline["missing"])))
    for each in attempts:
        if not each.get("refused"):
            label = "got through" if each.get("tried", True) else "not tried"
            shown.append((label, f"{each.get('action')}: {each.get('detail')}"))
    return shown
