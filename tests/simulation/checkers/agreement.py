"""6: at rest, the fold of the log, the tables and the fold of EVENTS are the same. 3: and nothing hangs."""

from __future__ import annotations

from typing import Any

from domain.audit import Auditor
from projections.project import Rows, project
from schemas import subjects
from schemas.events import decode_event
from services.control.intake import signature_valid
from tests.simulation.checkers import Violation


def check_agreement(rows: list[Any], tables: Rows, events: Any) -> Auditor:
    """`rows` is the log, `tables` what was projected, `events` the EVENTS stream."""
    auditor, folded = Auditor(signature_valid), {}
    for row in rows:
        event = decode_event(row.topic, row.state)
        before = auditor.states.get(row.stream)
        auditor.take(row.position, row.stream, row.version, event)
        after = auditor.states[row.stream]
        if after is not None and after is not before:
            project(before, after, row.position, folded)
    auditor.finish()
    if auditor.violations:
        raise Violation(f"the audit found {auditor.violations[:3]}")
    if auditor.stale:
        raise Violation(f"the writer wrote stale events: {auditor.stale[:3]}")
    if folded != tables:
        wrong = [key for key in folded.keys() | tables.keys() if folded.get(key) != tables.get(key)]
        raise Violation(f"the tables are not the fold of the log: {wrong[:5]}")
    copied = [(int(h[subjects.HEADER_POSITION]), s, d) for s, d, h in events.messages.values()] if events else []
    wanted = [(row.position, subjects.event_subject(row.stream, row.topic), row.state) for row in rows]
    if copied != wanted:
        raise Violation(f"EVENTS holds {len(copied)} messages and the log {len(wanted)}, or they differ")
    return auditor
