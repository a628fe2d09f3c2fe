"""6: the fold of the log, the writer's memory, the tables and the fold of EVENTS are the same.

At every step, as far as each has come: what the active writer has in memory of the streams that it just wrote is the
fold of the log; the tables are the fold of the log up to their tracked position, row by row, each written when it
changed and no other; EVENTS is the beginning of the log, byte for byte. At rest all have come to the end, and the
audit of the whole log finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from domain.audit import Auditor
from domain.folding.fold import fold
from domain.folding.states import State
from projections.project import Rows, project
from schemas import events as ev
from schemas import subjects
from schemas.events import decode_event
from services.control.intake import signature_valid
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.truth import Truth


class Agreement(Checker):
    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.rows: list[LogRow] = []
        self.events: list[ev.Event] = []
        self._fresh: list[str] = []  # streams of the last transaction
        self._folded: dict[str, State | None] = {}
        self._projected: dict[str, State | None] = {}  # up to the tables' position
        self._tables: Rows = {}
        self._position = 0
        self._copied = 0

    def see(self, row: LogRow, event: ev.Event) -> None:
        self.rows.append(row)
        self.events.append(event)
        after, reason = fold(self._folded.get(row.stream), event)
        if reason is not None:
            raise Violation(f"position {row.position}: the writer wrote a stale event: {reason}")
        self._folded[row.stream] = after
        self._fresh.append(row.stream)

    def step(self) -> None:
        fresh, self._fresh = self._fresh, []
        memory = self._truth.memory() if fresh else None
        for stream in fresh if memory is not None else ():
            if memory is not None and memory.get(stream) != self._folded[stream]:
                raise Violation(f"{stream} in the writer's memory is not the fold of the log")

    def written(self, rows: Rows, expected: int, position: int) -> None:
        """The tables took these rows, and their position went from `expected` to `position`."""
        if expected != self._position or position < expected:
            raise Violation(f"the tables went from {expected} to {position}; they were at {self._position}")
        wanted: Rows = {}
        for row, event in zip(self.rows[expected:position], self.events[expected:position], strict=True):
            before = self._projected.get(row.stream)
            after, _ = fold(before, event)
            self._projected[row.stream] = after
            if after is not None:
                project(before, after, row.position, wanted)
        if wanted != rows:
            wrong = [key for key in wanted.keys() | rows.keys() if wanted.get(key) != rows.get(key)]
            raise Violation(f"at {position} the tables took rows that are not the fold of the log: {wrong[:5]}")
        self._position = position
        self._tables.update(wanted)

    def copied(self, first: bool, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        """EVENTS took this message, as its `first` or after the last one."""
        position = int(headers[subjects.HEADER_POSITION])
        expected = 1 if first else self._copied + 1
        if position != expected or position > len(self.rows):
            raise Violation(f"EVENTS took position {position}; the next is {expected} and the log has {len(self.rows)}")
        row = self.rows[position - 1]
        if (subject, data) != (subjects.event_subject(row.stream, row.topic), row.state):
            raise Violation(f"what EVENTS took for position {position} is not what the log has there")
        self._copied = position

    def rest_with(self, tables: Rows, events: Sequence[tuple[str, bytes, Mapping[str, str]]]) -> None:
        """At rest: the whole tables, and all that EVENTS holds, in its order."""
        audit(self.rows)
        if self._position != len(self.rows) or self._tables != tables:
            wrong = [key for key in self._tables.keys() | tables.keys() if self._tables.get(key) != tables.get(key)]
            raise Violation(f"the tables are not the fold of the log: {wrong[:5]}")
        copied = [(int(headers[subjects.HEADER_POSITION]), subject, data) for subject, data, headers in events]
        wanted = [(row.position, subjects.event_subject(row.stream, row.topic), row.state) for row in self.rows]
        if copied != wanted:
            raise Violation(f"EVENTS holds {len(copied)} messages and the log {len(wanted)}, or they differ")


def audit(rows: Sequence[Any]) -> Auditor:
    """The audit of a whole log, which must find nothing."""
    auditor = Auditor(signature_valid)
    for row in rows:
        auditor.take(row.position, row.stream, row.version, decode_event(row.topic, row.state))
    auditor.finish()
    if auditor.violations:
        raise Violation(f"the audit found {auditor.violations[:3]}")
    if auditor.stale:
        raise Violation(f"the writer wrote stale events: {auditor.stale[:3]}")
    return auditor
