"""PostgreSQL that was away for a while and is back: who uses it finds it within FOUND_S_MAX, however long it was away.

A real server is killed and started again; in between, everything that reads it sees that it is away. What is measured
begins when the server accepts connections. `services.pools.LOOK_AGAIN_S` makes it so: a pool by itself looks again
after 1, 2, 4, 8, … seconds.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import psycopg_pool
import pytest
import pytest_asyncio

from schemas.queries import Query
from services.embedded.postgres import ROLE, PostgresServer
from services.eventlog.migrate import migrate
from services.eventlog.port import LogUnavailable, NewEvent
from services.eventlog.postgres import PostgresLog
from services.projector.store import ViewStore
from services.query.reader import POOL_MAX, Reader

AWAY_S = 9.0  # long enough that a backoff of 1, 2, 4, 8 s has begun its 8
FOUND_S_MAX = 1.0
WAIT_S = 40.0
AWAY = (LogUnavailable, psycopg.Error, psycopg_pool.PoolTimeout)


@dataclass
class Users:
    """Control plane and relay have a log, the projector a log and a store, the query service a reader."""

    log: PostgresLog
    store: ViewStore
    reader: Reader

    def asked(self) -> dict[str, Callable[[], Awaitable[object]]]:
        return {
            "log": self.log.last_position,
            "store": self.store.prepare,
            "reader": lambda: self.reader.answer("node", Query()),
        }


@pytest_asyncio.fixture
async def server() -> AsyncIterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="tenure-postgres-", ignore_cleanup_errors=True) as folder:
        made = PostgresServer(Path(folder))
        await made.start()
        yield made
        await made.stop()


@pytest_asyncio.fixture
async def users(server: PostgresServer) -> AsyncIterator[Users]:
    dsn = server.dsn()
    await asyncio.to_thread(migrate, dsn)
    log, store, reader = PostgresLog(dsn), ViewStore(dsn), Reader(dsn)
    await reader.open()
    await store.prepare()
    yield Users(log, store, reader)
    await reader.close()
    await store.close()
    await log.close()


async def answered_s(ask: Callable[[], Awaitable[object]]) -> float:
    """Ask until there is an answer; the clock when it came."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            await ask()
        except AWAY:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        else:
            return time.monotonic()


async def test_everybody_finds_a_database_that_is_back(server: PostgresServer, users: Users) -> None:
    for ask in users.asked().values():
        await ask()
    server.child.signal(signal.SIGKILL)
    assert await server.child.wait(WAIT_S)
    killed_s = time.monotonic()
    while time.monotonic() - killed_s < AWAY_S:  # everybody looks for it all the time, in vain
        await asyncio.gather(*(_in_vain(ask) for ask in users.asked().values()))
    finding = {name: asyncio.create_task(answered_s(ask)) for name, ask in users.asked().items()}
    await server.start()
    back_s = time.monotonic()
    late = {name: round(await task - back_s, 2) for name, task in finding.items()}
    assert max(late.values()) < FOUND_S_MAX, late


async def test_a_connection_that_breaks_under_a_call_is_no_defect(server: PostgresServer, users: Users) -> None:
    """The call is repeated on another one; nothing ends, and nobody is told that the database is away."""
    position = await users.store.prepare()
    epoch = await users.log.take_epoch("a")
    assert epoch is not None
    with psycopg.connect(server.dsn(), autocommit=True) as other:
        for number in range(2):
            mine = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND pid <> pg_backend_pid()"
            )
            other.execute(mine, (ROLE,))
            assert await users.store.write({}, position, position)
            assert await users.log.append([NewEvent("node-a", number + 1, "node.enabled.v1", b"{}")], [], epoch)
            assert await users.log.renew_epoch(epoch)


@pytest.mark.parametrize("table", ["node", "receipt"])
async def test_a_query_does_not_meet_the_connections_that_broke_in_the_pool(
    server: PostgresServer, users: Users, table: str
) -> None:
    slow = [users.reader.answer("node", Query(min_position=10**9, wait_ms=300)) for _ in range(POOL_MAX)]
    await asyncio.gather(*slow)  # as many connections as the pool may have
    server.child.signal(signal.SIGKILL)
    assert await server.child.wait(WAIT_S)
    await server.start()
    reply = await users.reader.answer(table, Query(id="none" if table == "receipt" else None))
    assert (reply.code, reply.rows) == (None, [])


async def _in_vain(ask: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(AWAY):
        await ask()
    await asyncio.sleep(0.02)
