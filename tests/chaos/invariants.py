"""What must hold after every fault: nothing that was accepted is lost, and the three copies of the log agree.

* Every accepted and every acknowledged command has its receipt, at the position that was told.
* EVENTS holds the log: each position once, in order, the same bytes.
* The audit finds no violation, and the tables are the fold of the log.
* No work is left open.
"""

from __future__ import annotations

import nats.errors
import nats.js.errors
import psycopg
from nats.aio.client import Client

from schemas import subjects
from services.audit import replay
from services.eventlog.port import LogRow
from services.eventlog.postgres import PostgresLog
from tests.chaos.load import Load
from tests.chaos.waiting import eventually

ROWS_PER_READ = 5_000


async def nothing_is_lost(dsn: str, nc: Client, load: Load | None = None) -> None:
    log = PostgresLog(dsn)
    try:
        await _receipts(log, load)
        await eventually(lambda: _no_open_work(dsn), "no work is left open")
        rows = await whole(log)
        _enrolled(rows, load)
        await eventually(lambda: _same_events(nc, rows), "EVENTS holds the log")
        await eventually(lambda: _audited(dsn), "the tables are the fold of the log")
    finally:
        await log.close()


async def whole(log: PostgresLog) -> list[LogRow]:
    rows: list[LogRow] = []
    while batch := await log.read(rows[-1].position if rows else 0, ROWS_PER_READ):
        rows += batch
    return rows


async def _receipts(log: PostgresLog, load: Load | None) -> None:
    if load is None:
        return
    wanted = [*load.accepted, *load.durable]

    async def receipted() -> bool:
        return len(await log.receipts(wanted)) == len(wanted)

    await eventually(receipted, "every accepted and every acknowledged command has a receipt")
    receipts = await log.receipts(list(load.accepted))
    assert {ident: receipt.position for ident, receipt in receipts.items()} == load.accepted


def _enrolled(rows: list[LogRow], load: Load | None) -> None:
    if load is not None:
        enrolled = [row.stream.removeprefix("node-") for row in rows if row.topic == "node.enrolled.v1"]
        assert len(enrolled) == len(set(enrolled))
        assert set(enrolled) >= {*load.accepted, *load.durable}


async def _audited(dsn: str) -> bool:
    report = await replay(dsn)
    assert not report.violations
    assert not report.stale
    return report.consistent and report.position == report.projected_position


async def _no_open_work(dsn: str) -> bool:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        cursor = await connection.execute("SELECT count(*) FROM view.work WHERE ended_at_ms IS NULL")
        row = await cursor.fetchone()
    return row is not None and row[0] == 0


async def _same_events(nc: Client, rows: list[LogRow]) -> bool:
    """Whether EVENTS begins with exactly these rows: each position once, in order, the same bytes."""
    js = nc.jetstream()
    try:
        info = await js.stream_info(subjects.STREAM_EVENTS)
        if info.state.messages < len(rows):
            return False
        subscription = await js.subscribe(f"{subjects.EVT}.>", ordered_consumer=True)
        got = [await subscription.next_msg(timeout=5) for _ in rows]
        await subscription.unsubscribe()
    except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
        return False
    positions = [int((message.headers or {})[subjects.HEADER_POSITION]) for message in got]
    assert positions == [row.position for row in rows]
    assert [message.data for message in got] == [row.state for row in rows]
    return True
