"""The `view.*` tables in PostgreSQL: made, rebuilt, written."""

from __future__ import annotations

from typing import Any

import psycopg

from projections.project import Rows
from projections.rows import Row
from projections.tables import PROJECTION, SCHEMA, as_json, ddl, upsert
from services.database.link import AWAY, CALL_S, Call, Link, T
from services.eventlog.port import LogUnavailable
from services.projector.version import rows_digest

MAKE_S = 60.0  # for tables: they wait for queries that read the old ones, and for another projector that makes them
MAKE_LOCK = 7_368_123_002  # arbitrary, ours


class ViewStore:
    """One link to the tables. A write that is repeated finds the position where it moved it, and is False."""

    def __init__(self, dsn: str) -> None:
        self._link = Link(dsn, "view", _not_waiting_for_the_disk)
        self._statements: dict[tuple[str, ...], str] = {}

    async def prepare(self, *, rebuild: bool = False) -> int:
        """Make the tables if another version made them (or if told to); the tracked position."""
        return await self._call(lambda conn: _prepare(conn, rebuild), MAKE_S)

    async def write(self, rows: Rows, expected: int, position: int) -> bool:
        """Write rows and move the position from `expected` to `position`; False where it was not there."""
        return await self._call(lambda conn: self._write(conn, rows, expected, position), CALL_S, in_loop=True)

    async def close(self) -> None:
        await self._link.close()

    async def _call(self, work: Call[T], call_s: float, *, in_loop: bool = False) -> T:
        try:
            return await self._link.call(work, call_s, in_loop=in_loop)
        except AWAY as error:
            raise LogUnavailable(str(error)) from error

    def _write(self, conn: psycopg.Connection[Any], rows: Rows, expected: int, position: int) -> bool:
        by_table: dict[str, list[Row]] = {}
        for (table, _), row in rows.items():
            by_table.setdefault(table, []).append(row)
        tables = tuple(sorted(by_table))
        statement = self._statements.get(tables)
        if statement is None:
            statement = self._statements[tables] = upsert(tables)
        parameters = [position, PROJECTION, expected, *(as_json(by_table[table]) for table in tables)]
        return conn.execute(statement.encode(), parameters, prepare=True).fetchone() is not None


def _not_waiting_for_the_disk(conn: psycopg.Connection[Any]) -> None:
    """Rows and position go together and can be had again from the log, so no commit needs to wait.

    After a crash of the server the last of them are projected once more.
    """
    conn.execute("SET synchronous_commit = off")


def _prepare(conn: psycopg.Connection[Any], rebuild: bool) -> int:
    digest = rows_digest()
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", (MAKE_LOCK,))
        there = conn.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.tracking",)).fetchone()
        if not rebuild and there is not None and there[0] is not None:
            row = conn.execute(
                "SELECT position, schema_digest FROM view.tracking WHERE name = %s", (PROJECTION,)
            ).fetchone()
            if row is not None and row[1] == digest:
                return int(row[0])
        conn.execute("SET LOCAL synchronous_commit = on")  # rows may come back late, tables may not be gone
        conn.execute("DROP SCHEMA IF EXISTS view CASCADE")
        for statement in ddl():
            conn.execute(statement.encode())
        conn.execute(
            "INSERT INTO view.tracking (name, position, schema_digest) VALUES (%s, 0, %s)", (PROJECTION, digest)
        )
    return 0
