"""The EventLog in PostgreSQL: the `eventsourcing` library's recorder, with receipts and an epoch.

The library owns the table, the connections and the retries. Appending follows its locking path: the table's
EXCLUSIVE lock comes first, so that positions become visible in order. Its ENABLE_DB_FUNCTIONS is never on,
because that path does not lock and lets a tailing reader skip events. Ours differs in how it is sent: one
function (`append_events` in schema.sql) locks, checks the epoch, and inserts events and receipts, so that a
commit is one round trip instead of several; the parameters are hand-built binary arrays; and there is no
NOTIFY, since wake-ups go over the bus and are only hints.

* The epoch: rows go in only while `leadership.epoch` is the caller's. Taking over holds the same lock, so an
  append is decided wholly before or wholly after it.
* The receipts of the commands in the group go in with the position of each one's last event.

The library repeats an append whose connection broke. If the lost one had landed, the repeat meets its own
receipts: ReceiptExists then means "look at the receipts" before anything else.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
from eventsourcing.persistence import (
    IntegrityError,
    InterfaceError,
    OperationalError,
    PersistenceError,
    StoredEvent,
)
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.utils import retry
from psycopg.conninfo import conninfo_to_dict

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
from services.pools import look_steadily

SCHEMA = "tenure"
EVENTS_TABLE = "stored_events"
CONNECT_TIMEOUT_S = 5.0
RETRIES_MAX, RETRY_S = 10, 0.2  # as the library has them

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

T = TypeVar("T")


class TenureRecorder(PostgresApplicationRecorder):
    """The library's recorder; `insert_events` takes our keyword arguments `epoch` and `receipts`."""

    @retry((InterfaceError, OperationalError), max_attempts=RETRIES_MAX, wait=RETRY_S)
    def insert_events(
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
        with self.datastore.get_connection() as conn, conn.cursor(row_factory=_tuples) as curs:
            return [row[0] for row in curs.execute(APPEND, parameters, prepare=True)]


class PostgresLog:
    """EventLog on one connection; calls queue up in order.

    The connection has a thread of its own, so that a slow database does not keep the loop from other work. A
    process that has no other work (`in_loop`) spares itself the two changes of thread for each call.
    """

    def __init__(self, dsn: str, *, in_loop: bool = False) -> None:
        self._in_loop = in_loop
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eventlog")
        self._closed = False
        self._datastore = open_datastore(dsn)
        self._recorder = TenureRecorder(self._datastore, events_table_name=EVENTS_TABLE)
        if self._datastore.enable_db_functions:
            raise RuntimeError("ENABLE_DB_FUNCTIONS lets tailing readers skip events; it must be off")

    async def append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        return await self._call(self._append, events, receipts, epoch)

    async def read(self, after: int, limit: int) -> list[LogRow]:
        return await self._call(self._read, READ, (after, limit))

    async def read_streams(self, streams: Sequence[str], up_to: int | None = None) -> list[LogRow]:
        bound = EVERYTHING if up_to is None else up_to
        return await self._call(self._read, READ_STREAMS, (TextArray(list(streams)), bound))

    async def receipts(self, command_ids: Sequence[str]) -> dict[str, Receipt]:
        rows = await self._call(self._rows, READ_RECEIPTS, (TextArray(list(command_ids)),))
        return {row[0]: Receipt(bytes(row[1]), bytes(row[2]), row[3]) for row in rows}

    async def last_position(self) -> int:
        return int((await self._call(self._rows, LAST, ()))[0][0])

    async def leader(self) -> Leader:
        rows = await self._call(self._rows, LEADER, ())
        if not rows:
            raise LogUnavailable("the leadership row is missing; run the migration")
        return Leader(*rows[0])

    async def take_epoch(self, holder: str, expected: int | None = None) -> int | None:
        return await self._call(self._take_epoch, holder, expected)

    async def renew_epoch(self, epoch: int) -> bool:
        return bool(await self._call(self._rows, RENEW_EPOCH, (epoch,)))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._executor, self._datastore.close)
        self._executor.shutdown(wait=False)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            if self._in_loop:
                return function(*args)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, functools.partial(function, *args))
        except psycopg.Error as error:
            raise LogUnavailable(str(error)) from error
        except PersistenceError as error:
            raise _as_log_error(error) from error

    def _append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        stored = [StoredEvent(event.stream, event.version, event.topic, event.state) for event in events]
        return list(self._recorder.insert_events(stored, receipts=receipts, epoch=epoch) or ())

    def _rows(self, query: str, parameters: tuple[Any, ...]) -> list[Any]:
        with self._datastore.get_connection() as conn, conn.cursor(binary=True, row_factory=_tuples) as curs:
            return curs.execute(query, parameters, prepare=True).fetchall()

    def _read(self, query: str, parameters: tuple[Any, ...]) -> list[LogRow]:
        with self._datastore.get_connection() as conn, conn.cursor(binary=True, row_factory=_tuples) as curs:
            return [LogRow(*row) for row in curs.execute(query, parameters, prepare=True).fetchall()]

    def _take_epoch(self, holder: str, expected: int | None) -> int | None:
        with self._datastore.get_connection() as conn, conn.transaction(), conn.cursor(row_factory=_tuples) as curs:
            self._recorder._lock_table(curs)
            row = curs.execute(TAKE_EPOCH, (holder, expected)).fetchone()
            return int(row[0]) if row is not None else None


def open_datastore(dsn: str) -> PostgresDatastore:
    """The library's datastore for a libpq DSN or URI, with every option of the DSN kept."""
    options = conninfo_to_dict(dsn)
    datastore = PostgresDatastore(
        dbname=str(options.get("dbname") or ""), host=str(options.get("host") or ""),
        port=str(options.get("port") or 5432), user=str(options.get("user") or ""), password="",
        pool_size=1, connect_timeout=CONNECT_TIMEOUT_S, schema=SCHEMA, originator_id_type="text",
        enable_db_functions=False,
    )  # fmt: skip
    pool: Any = datastore.pool
    pool.kwargs = {"row_factory": pool.kwargs["row_factory"], "connect_timeout": int(CONNECT_TIMEOUT_S), **options}
    configure = pool._configure

    def with_arrays(conn: psycopg.Connection[Any]) -> None:
        configure(conn)
        register_arrays(conn)

    pool._configure = with_arrays
    look_steadily(pool)
    return datastore


def _tuples(cursor: Any) -> Any:
    return psycopg.rows.tuple_row(cursor)


def _as_log_error(error: PersistenceError) -> LogError:
    cause = error.__cause__
    if isinstance(cause, psycopg.Error) and cause.sqlstate == EPOCH_OVER:
        return Superseded(str(error))
    if isinstance(error, IntegrityError) and isinstance(cause, psycopg.Error):
        return ReceiptExists(str(error)) if cause.diag.table_name == "receipts" else VersionConflict(str(error))
    return LogUnavailable(str(error))
