"""Answers to queries, from the `view.*` tables and the receipts.

Column names in `where` are checked against the row structs, never put into SQL unchecked. `position` is
read before the rows, so the rows are at least as new as it says.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import psycopg
import structlog
from psycopg import sql
from psycopg.rows import dict_row
from psycopg_pool import PoolTimeout

from projections.rows import TABLES
from projections.tables import PROJECTION
from schemas.codes import ADVICE, Code
from schemas.queries import Query, QueryReply
from services.database.connection import BoundedAsyncConnection, Silence
from services.database.options import with_bounds
from services.pools import SteadyPool

log = structlog.get_logger()

RECEIPTS = "receipt"
PREFIX_MIN = 4
POLL_S = 0.01  # only while a query waits; a wake-up for each projected batch would cost more
POOL_MAX = 4
POOL_TIMEOUT_S = 4.0
SILENCE_S = 4.0  # of the server; whoever asked has given up by then

POSITION = """
SELECT t.position, coalesce((SELECT max(notification_id) FROM tenure.stored_events), 0) AS newest,
       (extract(epoch FROM now() - t.updated_at) * 1000)::bigint AS age_ms
FROM view.tracking t WHERE t.name = %s
"""
RECEIPT = "SELECT command_id, outcome, position FROM tenure.receipts WHERE command_id = %s"


class Reader:
    def __init__(self, dsn: str) -> None:
        self._pool = SteadyPool(
            with_bounds(dsn), connection_class=BoundedAsyncConnection, configure=_bound, min_size=1, max_size=POOL_MAX,
            open=False, timeout=POOL_TIMEOUT_S, kwargs={"autocommit": True, "row_factory": dict_row},
        )  # fmt: skip

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def answer(self, table: str, query: Query) -> QueryReply:
        """The answer. After a restart of the server each connection in the pool is broken, and found so here."""
        if table != RECEIPTS and table not in TABLES:
            return _refused(Code.UNKNOWN_STREAM, f"there is no table {table!r}; there are {', '.join(TABLES)}")
        unknown = [name for name in query.where if table in TABLES and name not in TABLES[table].__struct_fields__]
        if unknown:
            return _refused(Code.COMMAND_MALFORMED, f"table {table} has no column {unknown[0]!r}")
        if any("\0" in (text or "") for text in (*query.where.values(), query.id, query.after)):
            return _refused(Code.COMMAND_MALFORMED, "no value in the tables holds a NUL character")
        until = time.monotonic() + query.wait_ms / 1000
        for _ in range(POOL_MAX):
            try:
                return await self._answer(table, query, until)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if isinstance(error, PoolTimeout | Silence) or not _connection_broke(error):
                    raise
                log.info("query.connection_broke", error=str(error))
        return await self._answer(table, query, until)

    async def _answer(self, table: str, query: Query, until: float) -> QueryReply:
        if table == RECEIPTS:
            return await self._receipt(query)
        position, age_ms = await self._position(query, until)
        if query.min_position is not None and position < query.min_position:
            return _refused(
                Code.UNAVAILABLE,
                f"the projection is at {position}, {query.min_position} was asked for",
                position,
                age_ms,
            )
        rows = await self._rows(table, query)
        if query.id is not None and len(rows) > 1 and not any(row["id"] == query.id for row in rows):
            return _refused(Code.UNKNOWN_STREAM, f"{query.id!r} begins more than one id", position, age_ms)
        if query.id is not None:
            rows = [row for row in rows if row["id"] == query.id] or rows
        return QueryReply(rows[: query.limit], position, age_ms, more=len(rows) > query.limit)

    async def _position(self, query: Query, until: float) -> tuple[int, int]:
        """The projection's position and age, after waiting for `min_position` until this time at most."""
        while True:
            async with self._pool.connection() as conn:
                row = await (await conn.execute(POSITION, (PROJECTION,))).fetchone()
            if row is None:
                return 0, 0
            position = int(row["position"])
            age_ms = 0 if position >= row["newest"] else int(row["age_ms"])
            left_s = until - time.monotonic()
            if query.min_position is None or position >= query.min_position or left_s <= 0:
                return position, age_ms
            await asyncio.sleep(min(POLL_S, left_s))

    async def _rows(self, table: str, query: Query) -> list[dict[str, Any]]:
        conditions: list[sql.Composable] = [
            sql.SQL("{}::text = %s").format(sql.Identifier(name)) for name in query.where
        ]
        parameters: list[Any] = list(query.where.values())
        if query.id is not None and len(query.id) >= PREFIX_MIN:
            conditions.append(sql.SQL("starts_with(id, %s)"))
            parameters.append(query.id)
        elif query.id is not None:
            conditions.append(sql.SQL("id = %s"))
            parameters.append(query.id)
        if query.after is not None:
            conditions.append(sql.SQL("id > %s"))
            parameters.append(query.after)
        statement = sql.SQL("SELECT * FROM {}").format(sql.Identifier("view", table))
        if conditions:
            statement += sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions)
        statement += sql.SQL(" ORDER BY id LIMIT %s")
        async with self._pool.connection() as conn:
            cursor = await conn.execute(statement, [*parameters, query.limit + 1])
            return list(await cursor.fetchall())

    async def _receipt(self, query: Query) -> QueryReply:
        async with self._pool.connection() as conn:
            row = await (await conn.execute(RECEIPT, (query.id or "",))).fetchone()
        if row is None:
            return QueryReply()
        outcome: dict[str, Any] = msgspec.json.decode(bytes(row["outcome"]))
        return QueryReply([{"id": row["command_id"], **outcome, "position": row["position"]}], row["position"] or 0)


async def _bound(conn: BoundedAsyncConnection) -> None:
    conn.silence_s = SILENCE_S


def _connection_broke(error: psycopg.Error) -> bool:
    """Not the statement: there is no SQLSTATE, or one of the server's going down (57P01 to 57P05)."""
    return error.sqlstate is None or error.sqlstate.startswith("57P")


def _refused(code: Code, message: str, position: int = 0, age_ms: int = 0) -> QueryReply:
    return QueryReply([], position, age_ms, code=code, message=message, advice=ADVICE[code])
