"""The EventLog in PostgreSQL: the `eventsourcing` library's recorder, with receipts and an epoch.

The library owns the table; the connections are `Link`s of ours, on which every call ends. Appending follows the
library's locking path: the table's EXCLUSIVE lock comes first, so that positions become visible in order. Its
ENABLE_DB_FUNCTIONS is never on, because that path does not lock and lets a tailing reader skip events. Ours differs in
how it is sent: one function (`append_events` in schema.sql) locks, checks the epoch, and inserts events and receipts,
so that a commit is one round trip instead of several; the parameters are hand-built binary arrays; and there is no
NOTIFY, since wake-ups go over the bus and are only hints.

* The epoch: rows go in only while `leadership.epoch` is the caller's. Taking over holds the same lock, so an
  append is decided wholly before or wholly after it.
* The receipts of the commands in the group go in with the position of each one's last event.

An append whose connection broke is repeated. If the lost one had landed, the repeat meets its own receipts:
ReceiptExists then means "look at the receipts" before anything else. One that is given up (LogUnavailable) may have
landed, but does not land later: the link ends its session before the log is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from services.database.connection import BoundedConnection
from services.database.link import Call, Link, T
from services.eventlog.arrays import BigintArray, ByteaArray, NullableBigintArray, TextArray, register_arrays
from services.eventlog.port import (
    Leader,
    LogError,
    LogRow,
    LogUnavailable,
    NewEvent,
    NewReceipt,
    Receipt,
    ReceiptExists,
    Superseded,
    VersionConflict,
)

SCHEMA = "tenure"
EVENTS_TABLE = "stored_events"
APPEND = f"SELECT * FROM {SCHEMA}.append_events(%s, %s, %s, %s, %s, %s, %s, %s, %s)"  # noqa: S608 - our own names
EPOCH_OVER = "TN001"  # raised by append_events
COLUMNS = "notification_id, originator_id, originator_version, topic, state"
READ = f"SELECT {COLUMNS} FROM {SCHEMA}.{EVENTS_TABLE} WHERE notification_id > %s ORDER BY notification_id LIMIT %s"  # noqa: S608
READ_STREAMS = f"""
SELECT {COLUMNS} FROM {SCHEMA}.{EVENTS_TABLE}
WHERE originator_id = ANY(%s::text[]) AND notification_id <= %s ORDER BY notification_id
"""  # noqa: S608
READ_RECEIPTS = (
    f"SELECT command_id, body_sha256, outcome, position FROM {SCHEMA}.receipts WHERE command_id = ANY(%s::text[])"  # noqa: S608
)
LAST = f"SELECT coalesce(max(notification_id), 0) FROM {SCHEMA}.{EVENTS_TABLE}"  # noqa: S608
LEADER = f"""
SELECT epoch, holder, (extract(epoch FROM clock_timestamp() - said_at) * 1000)::bigint FROM {SCHEMA}.leadership
"""  # noqa: S608
TAKE_EPOCH = f"""
UPDATE {SCHEMA}.leadership SET epoch = epoch + 1, holder = %s, said_at = clock_timestamp()
WHERE epoch = coalesce(%s, epoch) RETURNING epoch
"""  # noqa: S608
RENEW_EPOCH = f"UPDATE {SCHEMA}.leadership SET said_at = clock_timestamp() WHERE epoch = %s RETURNING epoch"  # noqa: S608
EVERYTHING = 2**62


class Datastore(PostgresDatastore):
    """The library's datastore on a connection that is there already."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        super().__init__(
            dbname="", host="", port="", user="", password="", schema=SCHEMA, originator_id_type="text",
            enable_db_functions=False,
        )  # fmt: skip
        self._conn = conn

    @contextmanager
    def get_connection(self) -> Iterator[psycopg.Connection[Any]]:
        yield self._conn

    def register_type_adapters(self) -> None:
        """Nothing of ours is sent as the library's composite type, so nobody needs to look it up."""


class TenureRecorder(PostgresApplicationRecorder):
    """The library's recorder; `insert_events` takes our keyword arguments `epoch` and `receipts`."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        super().__init__(Datastore(conn), events_table_name=EVENTS_TABLE)
        if self.datastore.enable_db_functions:
            raise RuntimeError("ENABLE_DB_FUNCTIONS lets tailing readers skip events; it must be off")

    def insert_events(  # type: ignore[override]  # nothing is appended without an epoch
        self, stored_events: Sequence[StoredEvent], *, epoch: int, receipts: Sequence[NewReceipt] = (), **_: Any
    ) -> Sequence[int]:
        # A receipt says how far from the end of the batch its last event is: only the database knows positions.
        last = len(stored_events) - 1
        parameters = (
            epoch,
            TextArray([str(event.originator_id) for event in stored_events]),
            BigintArray([event.originator_version for event in stored_events]),
            TextArray([event.topic for event in stored_events]),
            ByteaArray([event.state for event in stored_events]),
            TextArray([receipt.command_id for receipt in receipts]),
            ByteaArray([receipt.body_sha256 for receipt in receipts]),
            ByteaArray([receipt.outcome for receipt in receipts]),
            NullableBigintArray([None if r.last_event is None else last - r.last_event for r in receipts]),
        )
        conn: Any
        with self.datastore.get_connection() as conn, conn.cursor() as curs:
            return [row[0] for row in curs.execute(APPEND, parameters, prepare=True)]


class PostgresLog:
    """EventLog on one connection, on which calls queue up in order; LogUnavailable comes within `link.CALL_S`.

    The connection has a thread of its own, so that a slow database does not keep the loop from other work. A
    process that has no other work (`in_loop`) spares itself the two changes of thread for each call.

    Leadership is renewed on a second connection, with a thread of its own: it must not wait behind an append.
    """

    def __init__(self, dsn: str, *, in_loop: bool = False) -> None:
        self._in_loop = in_loop
        self._link = Link(dsn, "eventlog", self._prepare)
        self._leadership = Link(dsn, "leadership")
        self._recorder: TenureRecorder  # of the present connection

    async def append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        stored = [StoredEvent(event.stream, event.version, event.topic, event.state) for event in events]
        return await self._call(
            self._link, lambda conn: list(self._recorder.insert_events(stored, receipts=receipts, epoch=epoch))
        )

    async def read(self, after: int, limit: int) -> list[LogRow]:
        return await self._read(READ, (after, limit))

    async def read_streams(self, streams: Sequence[str], up_to: int | None = None) -> list[LogRow]:
        bound = EVERYTHING if up_to is None else up_to
        return await self._read(READ_STREAMS, (TextArray(list(streams)), bound))

    async def receipts(self, command_ids: Sequence[str]) -> dict[str, Receipt]:
        rows = await self._rows(self._link, READ_RECEIPTS, (TextArray(list(command_ids)),))
        return {row[0]: Receipt(bytes(row[1]), bytes(row[2]), row[3]) for row in rows}

    async def last_position(self) -> int:
        return int((await self._rows(self._link, LAST, ()))[0][0])

    async def leader(self) -> Leader:
        rows = await self._rows(self._link, LEADER, ())
        if not rows:
            raise LogUnavailable("the leadership row is missing; run the migration")
        return Leader(*rows[0])

    async def take_epoch(self, holder: str, expected: int | None = None) -> int | None:
        def take(conn: BoundedConnection) -> int | None:
            with conn.transaction(), conn.cursor() as curs:
                self._recorder._lock_table(curs)
                row = curs.execute(TAKE_EPOCH, (holder, expected)).fetchone()
                return int(row[0]) if row is not None else None

        return await self._call(self._link, take)

    async def renew_epoch(self, epoch: int) -> bool:
        return bool(await self._rows(self._leadership, RENEW_EPOCH, (epoch,)))

    async def close(self) -> None:
        await self._link.close()
        await self._leadership.close()

    def _prepare(self, conn: BoundedConnection) -> None:
        register_arrays(conn)
        self._recorder = TenureRecorder(conn)

    async def _rows(self, link: Link, query: str, parameters: tuple[Any, ...]) -> list[Any]:
        def read(conn: BoundedConnection) -> list[Any]:
            with conn.cursor(binary=True) as curs:
                return curs.execute(query, parameters, prepare=True).fetchall()

        return await self._call(link, read)

    async def _read(self, query: str, parameters: tuple[Any, ...]) -> list[LogRow]:
        return [LogRow(*row) for row in await self._rows(self._link, query, parameters)]

    async def _call(self, link: Link, work: Call[T]) -> T:
        try:
            return await link.call(work, in_loop=self._in_loop)
        except psycopg.Error as error:
            raise _as_log_error(error) from error


def _as_log_error(error: psycopg.Error) -> LogError:
    if error.sqlstate == EPOCH_OVER:
        return Superseded(str(error))
    if isinstance(error, psycopg.IntegrityError):
        return ReceiptExists(str(error)) if error.diag.table_name == "receipts" else VersionConflict(str(error))
    return LogUnavailable(str(error))
