"""A link to PostgreSQL: one connection with a thread of its own, opened when it is needed, on which every call ends.

* A call ends within CALL_S, waiting for its turn included, or as long after the last byte that moved. It fails sooner
  where connections are refused: after REFUSED_S, so that a restart of the server is not noticed.
* A call whose connection broke is repeated within REFUSED_S. So what is called must be safe to repeat.
* Before a new connection is used, the server's session behind the one before it is ended, and seen to have ended. Else
  what was asked last, and was given up, could be done later: after somebody has looked and found it undone.
* Connecting happens in the thread, since names are looked up and nobody bounds that. Calls happen there too, unless the
  process has nothing else to do than this call (`in_loop`): that spares two changes of thread.
* A transaction that was cut off is ended by the server after CALL_S, with its locks. It would not notice for hours.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg

from services.database.connection import BoundedConnection
from services.database.options import with_bounds
from services.pools import LOOK_AGAIN_S

CALL_S = 4.0  # no longer than the default term of a leader: a call that takes longer is of no use to one
REFUSED_S = 2.0  # a connection that is begun by then has CONNECT_TIMEOUT_S left of CALL_S
GRACE_S = 0.5  # beyond that a caller waits no more for the thread; what was called is not begun any more
END_MS = 1_000  # how long the server waits for the end of the session before

AWAY = (psycopg.OperationalError, psycopg.InterfaceError)
WHO = f"""
SELECT pid, backend_start
FROM pg_stat_activity, set_config('idle_in_transaction_session_timeout', '{CALL_S:g}s', false)
WHERE pid = pg_backend_pid()
"""  # noqa: S608 - our own number
END = "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"

T = TypeVar("T")
Call = Callable[[BoundedConnection], T]


class Link:
    """`prepare` is called with each new connection, which is in autocommit mode."""

    def __init__(self, dsn: str, name: str, prepare: Callable[[BoundedConnection], None] = lambda conn: None) -> None:
        """Nothing is connected yet. Raises psycopg.ProgrammingError where the DSN is none."""
        self._dsn = with_bounds(dsn)
        self._prepare = prepare
        self._conn: BoundedConnection | None = None
        self._session: tuple[Any, ...] | None = None  # of the last connection: process id and start
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._last: Future[Any] | None = None  # what the thread was given last
        self._closed = False

    async def call(self, work: Call[T], call_s: float = CALL_S, *, in_loop: bool = False) -> T:
        """What `work` gives. Raises psycopg.Error; one of AWAY where PostgreSQL did not answer in time."""
        until_s = time.monotonic() + call_s
        if in_loop and self._conn is not None and (self._last is None or self._last.done()):
            try:
                return self._once(work, until_s, call_s)
            except AWAY:
                if time.monotonic() >= until_s:
                    raise
        return await self._in_thread(call_s + GRACE_S, self._repeat, work, until_s, call_s)

    async def close(self) -> None:
        """Close the connection, after what is under way; a thread that is stuck is not waited for."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(psycopg.OperationalError):
            await self._in_thread(CALL_S + GRACE_S, self._drop)
        self._executor.shutdown(wait=False)

    async def _in_thread(self, wait_s: float, function: Callable[..., T], *args: Any) -> T:
        given = self._last = self._executor.submit(function, *args)
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.wrap_future(given)
        except TimeoutError:
            raise psycopg.OperationalError(f"PostgreSQL could not be reached in {wait_s:.1f} s") from None

    def _repeat(self, work: Call[T], until_s: float, call_s: float) -> T:
        refused_until_s = min(until_s, until_s - call_s + REFUSED_S)
        while True:
            used = self._conn is not None
            try:
                return self._once(work, until_s, call_s)
            except AWAY:
                if time.monotonic() >= refused_until_s:
                    raise
            if not used or self._conn is not None:  # else the connection is one that broke while nobody looked
                time.sleep(LOOK_AGAIN_S)

    def _once(self, work: Call[T], until_s: float, call_s: float) -> T:
        conn = self._conn
        if conn is None:
            conn = self._conn = self._open(until_s, call_s)
        if time.monotonic() >= until_s:
            raise psycopg.OperationalError(f"PostgreSQL could not be reached in {call_s:.1f} s")
        conn.until_s, conn.silence_s = until_s, call_s
        try:
            return work(conn)
        finally:
            if conn.closed:
                self._conn = None

    def _open(self, until_s: float, call_s: float) -> BoundedConnection:
        conn = BoundedConnection.connect(self._dsn, autocommit=True)
        conn.until_s, conn.silence_s = until_s, call_s
        try:
            if self._session is not None:
                self._end(conn, self._session)
            self._session = conn.execute(WHO).fetchone()
            self._prepare(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    def _end(self, conn: BoundedConnection, session: tuple[Any, ...]) -> None:
        """See the session of the connection before end, if it has not. One that commits right now takes its time."""
        found = conn.execute(END, (END_MS, *session)).fetchone()
        if found is not None and not found[0]:
            raise psycopg.OperationalError("PostgreSQL is still at work on a call that was given up")

    def _drop(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
