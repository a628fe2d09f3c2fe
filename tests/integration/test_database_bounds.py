"""Every call on the database ends, and what was given up does not happen later.

A real server, reached through a proxy on TCP that can hold what passes: as a network that is cut while both ends go on
thinking that they are connected. (Loopback acknowledges all the same, so what libpq's own bounds do is not seen here,
but that they are set is.)
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import psycopg_pool
import pytest

from schemas.queries import Query
from services.database.link import CALL_S, GRACE_S, REFUSED_S, Link
from services.database.options import BOUNDS
from services.embedded.postgres import PORT, ROLE, PostgresServer
from services.eventlog import migrate as migration
from services.eventlog.migrate import migrate
from services.eventlog.port import LogUnavailable, NewEvent, NewReceipt
from services.eventlog.postgres import PostgresLog
from services.projector.store import ViewStore
from services.query.reader import Reader
from tests.chaos.proxy import HOST, Proxy

LATE_S = 1.0  # what a machine that is busy may add
SOON_S = 1.0
AWAY = (LogUnavailable, psycopg.Error, psycopg_pool.PoolTimeout)
SOCKET_OPTIONS = {
    "tcp_user_timeout": socket.TCP_USER_TIMEOUT,
    "keepalives_idle": socket.TCP_KEEPIDLE,
    "keepalives_interval": socket.TCP_KEEPINTVL,
    "keepalives_count": socket.TCP_KEEPCNT,
}


class Network(Proxy):
    """TCP on this side, the server's Unix socket on the other."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(lambda: PORT)
        self._path = str(server.socket_dir / f".s.PGSQL.{PORT}")

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._path)


@pytest.fixture
async def network(postgres_server: PostgresServer) -> AsyncIterator[Network]:
    proxy = Network(postgres_server)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def dsn(network: Network, postgres_dsn: str) -> str:
    """The database, migrated, by way of the proxy."""
    await asyncio.to_thread(migrate, postgres_dsn)
    with psycopg.connect(postgres_dsn) as conn:
        return f"postgresql://{ROLE}@{HOST}:{network.port}/{conn.info.dbname}"


@pytest.fixture
async def log(dsn: str) -> AsyncIterator[PostgresLog]:
    made = PostgresLog(dsn)
    yield made
    await made.close()


def event(version: int = 1) -> NewEvent:
    return NewEvent("node-a", version, "node.enabled.v1", b"{}")


async def refused_s(call: Callable[[], Awaitable[object]]) -> float:
    """How long it took to say that the database is away."""
    begun_s = time.monotonic()
    with pytest.raises(AWAY):
        await call()
    return time.monotonic() - begun_s


def options_of(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> dict[str, str]:
    """As the kernel has them."""
    with socket.socket(fileno=socket.dup(conn.fileno())) as tcp:
        return {name: str(tcp.getsockopt(socket.IPPROTO_TCP, option)) for name, option in SOCKET_OPTIONS.items()}


BOUNDED = {name: BOUNDS[name] for name in SOCKET_OPTIONS}


async def test_every_connection_has_bounds(dsn: str, log: PostgresLog, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.last_position()
    await log.renew_epoch(1)
    store, reader = ViewStore(dsn), Reader(dsn)
    await store.prepare()
    await reader.open()
    for link in (log._link, log._leadership, store._link):
        assert link._conn is not None
        assert options_of(link._conn) == BOUNDED
        assert link._conn.info.get_parameters()["connect_timeout"] == BOUNDS["connect_timeout"]
    async with reader._pool.connection() as conn:
        assert options_of(conn) == BOUNDED
    await reader.close()
    await store.close()

    made = []

    def connect(*args: Any, **kwargs: Any) -> psycopg.Connection[Any]:
        made.append(psycopg.Connection.connect(*args, **kwargs))
        assert options_of(made[-1]) == BOUNDED
        return made[-1]

    monkeypatch.setattr(migration.psycopg, "connect", connect)
    await asyncio.to_thread(migrate, dsn)
    assert len(made) == 1


async def test_what_the_dsn_says_wins(dsn: str) -> None:
    own = PostgresLog(dsn + "?tcp_user_timeout=60000&keepalives_count=9")
    await own.last_position()
    assert own._link._conn is not None
    assert options_of(own._link._conn) == {**BOUNDED, "tcp_user_timeout": "60000", "keepalives_count": "9"}
    await own.close()


async def test_every_call_over_a_network_that_is_cut_ends(dsn: str, log: PostgresLog, network: Network) -> None:
    """On connections that are there, and with those that are made: neither hears anything any more."""
    epoch = await log.take_epoch("a")
    assert epoch is not None
    store, reader, in_loop = ViewStore(dsn), Reader(dsn), PostgresLog(dsn, in_loop=True)
    position = await store.prepare()
    await reader.open()
    await reader.answer("node", Query())
    await in_loop.last_position()
    await log.renew_epoch(epoch)
    network.hold()
    for _ in range(2):
        took = await asyncio.gather(
            refused_s(lambda: log.append([event()], [], epoch)),
            refused_s(lambda: log.renew_epoch(epoch)),
            refused_s(lambda: reader.answer("node", Query())),
        )
        assert max(took) < CALL_S + GRACE_S + LATE_S
        for call in (lambda: store.write({}, position, position), lambda: in_loop.read(0, 1)):
            assert await refused_s(call) < CALL_S + GRACE_S + LATE_S
    network.cut()  # what waited is lost
    network.release()
    network.heal()
    assert await in_loop.read(0, 1) == []
    assert await log.append([event()], [], epoch)
    assert await log.renew_epoch(epoch)
    assert await store.write({}, position, position)
    assert (await reader.answer("node", Query())).code is None
    await reader.close()
    await store.close()
    await in_loop.close()


async def test_a_database_that_refuses_is_away_sooner(log: PostgresLog, network: Network) -> None:
    """Not at once: it may be starting again. And the renewal does not wait until the append is given up."""
    epoch = await log.take_epoch("a")
    assert epoch is not None
    await network.close()  # and so nobody listens at its port
    took = await asyncio.gather(
        refused_s(lambda: log.append([event()], [], epoch)), refused_s(lambda: log.renew_epoch(epoch))
    )
    assert max(took) < REFUSED_S + LATE_S


async def test_a_process_whose_calls_are_in_its_loop_hears_signals_while_it_connects(network: Network) -> None:
    away = PostgresLog(f"host={HOST} port={network.port} user=x dbname=x", in_loop=True)
    await network.close()
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    other = asyncio.create_task(somebody_else())
    with pytest.raises(LogUnavailable):
        await away.read(0, 1)
    other.cancel()
    assert turns > REFUSED_S / 0.01 / 10
    await away.close()


async def test_leadership_is_renewed_while_an_append_waits(postgres_dsn: str, log: PostgresLog) -> None:
    epoch = await log.take_epoch("a")
    assert epoch is not None
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as other:
        await other.execute("LOCK TABLE tenure.stored_events IN EXCLUSIVE MODE")
        append = asyncio.create_task(log.append([event()], [], epoch))
        for _ in range(3):
            begun_s = time.monotonic()
            assert await log.renew_epoch(epoch)
            assert time.monotonic() - begun_s < SOON_S
            assert not append.done()
        await other.rollback()
        assert await append


async def test_an_append_that_was_given_up_while_it_waited_does_not_land_later(
    postgres_dsn: str, log: PostgresLog
) -> None:
    epoch = await log.take_epoch("a")
    assert epoch is not None
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as other:
        await other.execute("LOCK TABLE tenure.stored_events IN EXCLUSIVE MODE")
        took_s = await refused_s(lambda: log.append([event()], [NewReceipt("c", b"", b"", 0)], epoch))
        assert CALL_S - LATE_S < took_s < CALL_S + GRACE_S + LATE_S
        assert await log.receipts(["c"]) == {}  # the writer has looked, and decides on what it saw
        await other.rollback()
    assert await log.append([event()], [], epoch)
    assert await log.receipts(["c"]) == {}
    assert len(await log.read(0, 10)) == 1


async def test_an_append_that_the_network_held_does_not_land_later(log: PostgresLog, network: Network) -> None:
    """Its bytes come to the server after the log was read again over another connection."""
    epoch = await log.take_epoch("a")
    assert epoch is not None
    await log.append([event()], [], epoch)  # so that the statement is there, and the next one is sent whole
    network.hold(new=False)
    await refused_s(lambda: log.append([event(2)], [NewReceipt("c", b"", b"", 0)], epoch))
    assert len(await log.read(0, 10)) == 1
    assert network.holds(b"node-a")
    network.release()
    assert await log.append([event(2)], [], epoch)
    assert await log.receipts(["c"]) == {}
    assert len(await log.read(0, 10)) == 2


async def test_a_session_that_cannot_be_ended_yet_keeps_its_successor_from_looking(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit waits for the disk, say: whether it lands is not known, so nothing is told before it is."""
    link = Link(postgres_dsn, "test")
    assert await link.call(lambda conn: conn.execute("SELECT 1").fetchone()) == (1,)
    never = "SELECT false FROM (SELECT %s, %s::int, %s::timestamptz) AS nobody"
    with monkeypatch.context() as patched:
        patched.setattr("services.database.link.END", never)
        assert link._conn is not None
        link._conn.close()
        with pytest.raises(psycopg.OperationalError, match="given up"):
            await link.call(lambda conn: conn.execute("SELECT 1").fetchone())
    assert await link.call(lambda conn: conn.execute("SELECT 2").fetchone()) == (2,)
    await link.close()


async def test_a_transaction_that_was_cut_off_does_not_keep_its_locks(postgres_dsn: str) -> None:
    link = Link(postgres_dsn, "test")
    found = await link.call(lambda conn: conn.execute("SHOW idle_in_transaction_session_timeout").fetchone())
    assert found == (f"{CALL_S:g}s",)
    await link.close()
