"""One suite for every EventLog: the in-memory one and PostgreSQL must not be told apart by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.eventlog.memory import MemoryLog
from services.eventlog.migrate import migrate
from services.eventlog.port import EventLog, NewEvent, NewReceipt, ReceiptExists, Superseded, VersionConflict
from services.eventlog.postgres import PostgresLog


@pytest.fixture(params=["memory", "postgres"])
def dsn(request: pytest.FixtureRequest) -> str | None:
    """None for the log in memory, else an empty database."""
    return request.getfixturevalue("postgres_dsn") if request.param == "postgres" else None


@pytest.fixture
async def log(dsn: str | None) -> AsyncIterator[EventLog]:
    made: EventLog
    if dsn is None:
        made = MemoryLog()
    else:
        await asyncio.to_thread(migrate, dsn)
        made = PostgresLog(dsn)
    yield made
    await made.close()


def event(stream: str, version: int, state: bytes = b"{}") -> NewEvent:
    return NewEvent(stream, version, "node.enabled.v1", state)


def receipt(command_id: str, last_event: int | None) -> NewReceipt:
    return NewReceipt(command_id, b"\x01" * 32, b"outcome of " + command_id.encode(), last_event)


async def test_events_come_back_in_order_with_growing_positions(log: EventLog) -> None:
    epoch = await log.take_epoch("a")
    first = await log.append([event("node-a", 1, b"1"), event("node-b", 1, b"2")], [], epoch)
    second = await log.append([event("node-a", 2, b"3")], [], epoch)
    assert first[0] < first[1] < second[0]
    rows = await log.read(0, 10)
    assert [(row.position, row.stream, row.version, row.state) for row in rows] == [
        (first[0], "node-a", 1, b"1"),
        (first[1], "node-b", 1, b"2"),
        (second[0], "node-a", 2, b"3"),
    ]
    assert [row.position for row in await log.read(first[0], 1)] == [first[1]]
    assert await log.last_position() == second[0]


async def test_reading_streams_stops_at_a_position(log: EventLog) -> None:
    epoch = await log.take_epoch("a")
    positions = await log.append([event("node-a", 1), event("node-b", 1), event("node-a", 2)], [], epoch)
    rows = await log.read_streams(["node-a"])
    assert [row.version for row in rows] == [1, 2]
    assert [row.version for row in await log.read_streams(["node-a", "node-c"], up_to=positions[1])] == [1]
    assert await log.read_streams([]) == []


async def test_an_empty_log_is_at_zero(log: EventLog) -> None:
    assert await log.last_position() == 0
    assert await log.read(0, 10) == []
    assert await log.receipts(["nothing"]) == {}


async def test_a_taken_version_refuses_the_whole_group(log: EventLog) -> None:
    epoch = await log.take_epoch("a")
    await log.append([event("node-a", 1)], [], epoch)
    with pytest.raises(VersionConflict):
        await log.append([event("node-b", 1), event("node-a", 1)], [receipt("c", 0)], epoch)
    assert [row.stream for row in await log.read(0, 10)] == ["node-a"]
    assert await log.receipts(["c"]) == {}


async def test_receipts_carry_the_position_of_their_last_event(log: EventLog) -> None:
    epoch = await log.take_epoch("a")
    positions = await log.append(
        [event("node-a", 1), event("node-a", 2), event("node-b", 1)],
        [receipt("two", 1), receipt("none", None), receipt("one", 2)],
        epoch,
    )
    found = await log.receipts(["one", "two", "none", "unknown"])
    assert {ident: found[ident].position for ident in found} == {"two": positions[1], "one": positions[2], "none": None}
    assert found["two"].outcome == b"outcome of two"
    assert found["two"].body_sha256 == b"\x01" * 32


async def test_receipts_alone_can_be_appended(log: EventLog) -> None:
    epoch = await log.take_epoch("a")
    assert await log.append([], [receipt("refused", None)], epoch) == []
    assert (await log.receipts(["refused"]))["refused"].position is None


async def test_a_second_receipt_refuses_the_whole_group(log: EventLog) -> None:
    epoch = await log.take_epoch("a")
    await log.append([event("node-a", 1)], [receipt("c", 0)], epoch)
    with pytest.raises(ReceiptExists):
        await log.append([event("node-a", 2)], [receipt("c", 0)], epoch)
    with pytest.raises(ReceiptExists):
        await log.append([], [receipt("c", None)], epoch)
    assert len(await log.read(0, 10)) == 1
    assert await log.append([event("node-a", 2)], [receipt("d", 0)], epoch)  # the log is still usable


async def test_an_older_epoch_appends_nothing(log: EventLog) -> None:
    old = await log.take_epoch("a")
    new = await log.take_epoch("b")
    assert new > old
    with pytest.raises(Superseded):
        await log.append([event("node-a", 1)], [receipt("c", 0)], old)
    with pytest.raises(Superseded):
        await log.append([], [receipt("c", None)], old)
    assert await log.read(0, 10) == []
    assert await log.receipts(["c"]) == {}
    assert await log.append([event("node-a", 1)], [receipt("c", 0)], new)


async def test_leadership_is_taken_by_one_and_kept_by_saying_so(log: EventLog) -> None:
    nobody = await log.leader()
    assert (nobody.epoch, nobody.holder) == (0, "nobody")
    first = await log.take_epoch("a", expected=0)
    assert first == 1
    assert await log.take_epoch("b", expected=0) is None  # somebody was faster
    held = await log.leader()
    assert (held.epoch, held.holder) == (1, "a")
    assert held.silent_ms < 60_000
    assert await log.renew_epoch(1)
    assert await log.take_epoch("b", expected=1) == 2
    assert not await log.renew_epoch(1)
    assert (await log.leader()).holder == "b"


async def test_large_and_empty_payloads_survive(log: EventLog) -> None:
    epoch = await log.take_epoch("a")
    big = bytes(range(256)) * 2_000
    await log.append([event("node-a", 1, big), event("node-a", 2, b"")], [], epoch)
    assert [row.state for row in await log.read(0, 10)] == [big, b""]
