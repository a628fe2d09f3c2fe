"""The `view.*` tables in PostgreSQL: made, rebuilt, written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg

from projections.project import Rows
from projections.rows import Row
from projections.tables import PROJECTION, SCHEMA, as_json, ddl, upsert
from services.eventlog.port import LogUnavailable
from services.projector.version import rows_digest

CONNECT_TIMEOUT_S = 5
MAKE_LOCK = 7_368_123_002  # arbitrary, ours

T = TypeVar("T")


class ViewStore:
    """One connection, one thread. A broken connection is opened anew by the next call."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: psycopg.Connection[Any] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="view")
        self._statements: dict[tuple[str, ...], str] = {}

    async def prepare(self, *, rebuild: bool = False) -> int:
        """Make the tables if another version made them (or if told to); the tracked position."""
        return await self._call(self._prepare, rebuild)

    async def write(self, rows: Rows, expected: int, position: int) -> bool:
        """Write rows and move the position from `expected` to `position`; False where it was not there."""
        try:
            return self._write(rows, expected, position)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self._close()
            raise LogUnavailable(str(error)) from error

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=False)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
            raise LogUnavailable(str(error)) from error

    def _connection(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
            # Rows and position go together and can be had again from the log: after a crash of the server the
            # last of them are projected once more, so no commit needs to wait for the disk.
            self._conn.execute("SET synchronous_commit = off")
        return self._conn

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _prepare(self, rebuild: bool) -> int:
        conn, digest = self._connection(), rows_digest()
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

    def _write(self, rows: Rows, expected: int, position: int) -> bool:
        by_table: dict[str, list[Row]] = {}
        for (table, _), row in rows.items():
            by_table.setdefault(table, []).append(row)
        tables = tuple(sorted(by_table))
        statement = self._statements.get(tables)
        if statement is None:
            statement = self._statements[tables] = upsert(tables)
        parameters = [position, PROJECTION, expected, *(as_json(by_table[table]) for table in tables)]
        return self._connection().execute(statement.encode(), parameters, prepare=True).fetchone() is not None
