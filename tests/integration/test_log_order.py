"""A reader that tails the log never passes over an event: positions become visible in the order they are drawn.

The interleaving that goes wrong without the lock: one transaction draws position n and has not committed, a
second one draws n + 1 and commits; who reads then goes on from n + 1 and never sees n.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from services.eventlog.migrate import migrate
from services.eventlog.port import NewEvent, Superseded
from services.eventlog.postgres import PostgresLog
from tests.plane import eventually

APPEND = """
SELECT * FROM tenure.append_events(
    %s, ARRAY['node-slow'], ARRAY[1]::bigint[], ARRAY['node.enabled.v1'], ARRAY['{}'::bytea], ARRAY[]::text[],
    ARRAY[]::bytea[], ARRAY[]::bytea[], ARRAY[]::bigint[]
)
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'tenure.stored_events'::regclass AND NOT granted"


def event(stream: str) -> NewEvent:
    return NewEvent(stream, 1, "node.enabled.v1", b"{}")


async def _somebody_waits(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watching:

        async def waits() -> bool:
            row = await (await watching.execute(WAITING)).fetchone()
            return row is not None and row[0] > 0

        await eventually(waits, "an append waits for the lock")


async def test_an_append_waits_for_the_one_before_it(postgres_dsn: str) -> None:
    await asyncio.to_thread(migrate, postgres_dsn)
    log, reader = PostgresLog(postgres_dsn), PostgresLog(postgres_dsn)
    epoch = await log.take_epoch("a")
    assert epoch is not None
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as slow:
        row = await (await slow.execute(APPEND, (epoch,))).fetchone()  # as the log itself appends, and not committed
        assert row is not None
        append = asyncio.create_task(log.append([event("node-fast")], [], epoch))
        await _somebody_waits(postgres_dsn)
        assert await reader.read(0, 10) == []
        assert not append.done()
        await slow.commit()
        (position,) = await append
    assert position > row[0]
    assert [found.stream for found in await reader.read(0, 10)] == ["node-slow", "node-fast"]
    await log.close()
    await reader.close()


async def test_an_append_that_waited_for_a_takeover_is_refused(postgres_dsn: str) -> None:
    """The epoch is read after the lock, not before."""
    await asyncio.to_thread(migrate, postgres_dsn)
    log = PostgresLog(postgres_dsn)
    epoch = await log.take_epoch("a")
    assert epoch is not None
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as other:
        await other.execute("LOCK TABLE tenure.stored_events IN EXCLUSIVE MODE")
        await other.execute("UPDATE tenure.leadership SET epoch = epoch + 1, holder = 'b'")
        append = asyncio.create_task(log.append([event("node-late")], [], epoch))
        await _somebody_waits(postgres_dsn)
        await other.commit()
        with pytest.raises(Superseded):
            await append
    assert await log.read(0, 10) == []
    await log.close()
