"""`audit replay`: read the whole log again, judge it, and hold the projected tables against its fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg.rows import dict_row

from domain.audit import Auditor, Finding
from domain.folding.states import State
from projections.project import Rows, project
from projections.rows import TABLES, Row
from projections.tables import as_json
from schemas.events import Event, decode_event
from services.control.intake import signature_valid
from services.database.options import with_bounds
from services.eventlog.port import EventLog, LogRow
from services.eventlog.postgres import PostgresLog

ROWS_PER_READ = 5_000
DIFFERENCES_MAX = 100

OnEvent = Callable[[LogRow, Event], None]


class AuditReport(NamedTuple):
    """`consistent` is True where nothing forbidden is in the log and the tables are its fold.

    `stale` events and `rejected` evidence are no fault of the log: they were refused and kept, or refused
    again at replay. They are listed so that a person can ask where they came from.
    """

    events: int
    streams: int
    position: int
    signatures_checked: int
    stale: list[Finding]
    rejected: list[Finding]
    violations: list[Finding]
    tables_compared: int
    projected_position: int
    table_differences: list[str]
    consistent: bool


async def replay(
    dsn: str, on_progress: Callable[[int], None] = lambda events: None, on_event: OnEvent | None = None
) -> AuditReport:
    """Audit the log behind `dsn`. `on_event` sees every event in order, for telling the story."""
    log = PostgresLog(dsn)
    try:
        return await audit(log, dsn, on_progress, on_event)
    finally:
        await log.close()


async def audit(
    log: EventLog,
    dsn: str | None,
    on_progress: Callable[[int], None] = lambda events: None,
    on_event: OnEvent | None = None,
) -> AuditReport:
    """The audit of any EventLog; without a DSN no tables are compared."""
    auditor = Auditor(signature_valid)
    rows: Rows = {}
    tables = read_tables(dsn) if dsn is not None else None
    bound = tables[0] if tables is not None else None
    while batch := await log.read(auditor.position, ROWS_PER_READ):
        for row in batch:
            event = decode_event(row.topic, row.state)
            before: State | None = auditor.states.get(row.stream)
            counted = auditor.take(row.position, row.stream, row.version, event)
            after = auditor.states[row.stream]
            if counted and after is not None and (bound is None or row.position <= bound):
                project(before, after, row.position, rows)
            if on_event is not None:
                on_event(row, event)
        on_progress(auditor.events)
    auditor.finish()
    differences = compare(rows, tables[1]) if tables is not None else []
    return AuditReport(
        events=auditor.events, streams=len(auditor.states), position=auditor.position,
        signatures_checked=auditor.signatures_checked, stale=auditor.stale, rejected=auditor.rejected,
        violations=auditor.violations, tables_compared=len(TABLES) if tables is not None else 0,
        projected_position=bound or 0, table_differences=differences,
        consistent=not auditor.violation_count and not differences,
    )  # fmt: skip


def read_tables(dsn: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]]] | None:
    """All projected rows and the position they stand for, in one snapshot; None before the first projector."""
    with psycopg.connect(with_bounds(dsn), row_factory=dict_row) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        there = conn.execute("SELECT to_regclass('view.tracking') AS there").fetchone()
        if there is None or there["there"] is None:
            return None
        tracked = conn.execute("SELECT position FROM view.tracking").fetchone()
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for table in TABLES:
            for row in conn.execute(f"SELECT * FROM view.{table}".encode()):  # noqa: S608 - our own table names
                found[table, row["id"]] = row
        return (int(tracked["position"]) if tracked is not None else 0), found


def compare(folded: Rows, projected: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """How the tables differ from the fold; empty where they are equal."""
    differences = [f"{table} {ident}: not in the table" for table, ident in folded.keys() - projected.keys()]
    differences += [f"{table} {ident}: not in the log" for table, ident in projected.keys() - folded.keys()]
    for key in folded.keys() & projected.keys():
        if _plain(folded[key]) != projected[key]:
            differences.append(f"{key[0]} {key[1]}: the table has other values than the log")
    return sorted(differences)[:DIFFERENCES_MAX]


def _plain(row: Row) -> dict[str, Any]:
    plain: list[dict[str, Any]] = msgspec.json.decode(as_json([row]))
    return plain[0]
